// Preloaded into the programs of a test (LD_PRELOAD): something happens right after a chosen one of
// them has posted its n-th request to RDMA devices, so that transfers are under way.
//
//   SHOAL_TEST_FAULT_PROGRAM  "shoal-worker"
//   SHOAL_TEST_FAULT_POSTS    n
//   SHOAL_TEST_FAULT_ONCE     a file: of several processes of that name the one that can remove it
//   SHOAL_TEST_FAULT_DO       "break": the queue pair goes into the error state, as by a fatal
//   error
//                             of the device. Anything else is a shell command; $PPID is the process
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

namespace {

using PostSend = int(ibv_qp*, ibv_send_wr*, ibv_send_wr**);

std::atomic<PostSend*> real_post_send{nullptr};
std::atomic<long> posts_left{-1};

std::string Setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void Break(ibv_qp* queue_pair) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(queue_pair, &attributes, IBV_QP_STATE);
}

int PostAndFail(ibv_qp* queue_pair, ibv_send_wr* requests, ibv_send_wr** bad) {
  const int result = real_post_send.load()(queue_pair, requests, bad);
  if (posts_left.fetch_sub(1) == 1 && unlink(Setting("SHOAL_TEST_FAULT_ONCE").c_str()) == 0) {
    const std::string what = Setting("SHOAL_TEST_FAULT_DO");
    if (what == "break") {
      Break(queue_pair);
    } else {
      (void)!std::system(what.c_str());
    }
  }
  return result;
}

bool IsChosen() { return Setting("SHOAL_TEST_FAULT_PROGRAM") == program_invocation_short_name; }

}  // namespace

// Posting is a call through the device's table, which is at hand once there is a queue pair.
extern "C" ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  using Create = ibv_qp*(ibv_pd*, ibv_qp_init_attr*);
  auto* const real = reinterpret_cast<Create*>(dlsym(RTLD_NEXT, "ibv_create_qp"));
  ibv_qp* const made = real(pd, attributes);
  if (made != nullptr && IsChosen() && made->context->ops.post_send != PostAndFail) {
    if (real_post_send.load() == nullptr) {
      posts_left = std::atol(Setting("SHOAL_TEST_FAULT_POSTS").c_str());
    }
    real_post_send = made->context->ops.post_send;
    made->context->ops.post_send = PostAndFail;
  }
  return made;
}
