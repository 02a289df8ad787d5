// Sees what this process posts to RDMA devices. Linked into a program, or into a library that is
// preloaded into one, it stands between the program and libibverbs; the transports know nothing of
// it.
#pragma once

#include <infiniband/verbs.h>

namespace shoal::transport {

class PostHook {
 public:
  virtual ~PostHook() = default;
  // May change the chain of requests, which the device has not seen yet.
  virtual void BeforePost(ibv_send_wr* /*requests*/) {}
  virtual void AfterPost(ibv_qp* /*queue_pair*/) {}
};

// Called for every chain of all queue pairs that are made from now on, on the posting thread. The
// hook must outlive them.
void SetPostHook(PostHook* hook);

}  // namespace shoal::transport
