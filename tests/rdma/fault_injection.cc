// Preloaded into the programs of a test (LD_PRELOAD): something happens right after a chosen one of
// them has posted for the n-th time, so that transfers are under way.
//
//   SHOAL_TEST_FAULT_PROGRAM  "shoal-worker"
//   SHOAL_TEST_FAULT_POSTS    n
//   SHOAL_TEST_FAULT_ONCE     a file: of several processes of that name the one that can remove it
//   SHOAL_TEST_FAULT_DO       "break": the queue pair goes into the error state, as by a fatal
//   error
//                             of the device. Anything else is a shell command; $PPID is the process
#include <errno.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "tests/rdma/post_hook.h"

namespace shoal::transport {
namespace {

std::string Setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

class Fault : public PostHook {
 public:
  Fault() : posts_left_(std::atol(Setting("SHOAL_TEST_FAULT_POSTS").c_str())) {}

  void AfterPost(ibv_qp* queue_pair) override {
    if (posts_left_.fetch_sub(1) != 1 || unlink(Setting("SHOAL_TEST_FAULT_ONCE").c_str()) != 0) {
      return;
    }
    const std::string what = Setting("SHOAL_TEST_FAULT_DO");
    if (what == "break") {
      ibv_qp_attr attributes = {};
      attributes.qp_state = IBV_QPS_ERR;
      ibv_modify_qp(queue_pair, &attributes, IBV_QP_STATE);
    } else {
      (void)!std::system(what.c_str());
    }
  }

 private:
  std::atomic<long> posts_left_;
};

[[gnu::constructor]] void Begin() {
  if (Setting("SHOAL_TEST_FAULT_PROGRAM") == program_invocation_short_name) {
    SetPostHook(new Fault);  // to the end of the process
  }
}

}  // namespace
}  // namespace shoal::transport
