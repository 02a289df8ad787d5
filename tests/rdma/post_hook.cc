#include "tests/rdma/post_hook.h"

#include <dlfcn.h>

#include <atomic>

namespace shoal::transport {
namespace {

using PostSend = int(ibv_qp*, ibv_send_wr*, ibv_send_wr**);

std::atomic<PostHook*> hook{nullptr};
std::atomic<PostSend*> real_post_send{nullptr};

int HookedPostSend(ibv_qp* queue_pair, ibv_send_wr* requests, ibv_send_wr** bad) {
  hook.load()->BeforePost(requests);
  const int result = real_post_send.load()(queue_pair, requests, bad);
  hook.load()->AfterPost(queue_pair);
  return result;
}

}  // namespace

void SetPostHook(PostHook* new_hook) { hook = new_hook; }

}  // namespace shoal::transport

// libibverbs' own function is found behind this one. Posting is a call through the device's table,
// which is at hand once there is a queue pair.
extern "C" ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  using Create = ibv_qp*(ibv_pd*, ibv_qp_init_attr*);
  auto* const create = reinterpret_cast<Create*>(dlsym(RTLD_NEXT, "ibv_create_qp"));
  ibv_qp* const made = create(pd, attributes);
  if (made != nullptr && shoal::transport::hook.load() != nullptr) {
    auto& post_send = made->context->ops.post_send;
    if (post_send != shoal::transport::HookedPostSend) {
      shoal::transport::real_post_send = post_send;
      post_send = shoal::transport::HookedPostSend;
    }
  }
  return made;
}
