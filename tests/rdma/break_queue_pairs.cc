// Preloaded into the programs under test (LD_PRELOAD): whenever a file named
// <SHOAL_TEST_BREAK>-<program> appears, the process removes it and moves the last queue pair that it
// made, and that still lives, into the error state, as a fatal error of the device would.
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

// Never destroyed: the watching thread runs until the process ends.
struct State {
  std::mutex mutex;
  std::vector<ibv_qp*> alive;
};
State& TheState() {
  static State* const state = new State;
  return *state;
}

template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

void BreakOneIfAsked(const std::string& file) {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  if (state.alive.empty() || unlink(file.c_str()) != 0) {  // of several processes one succeeds
    return;
  }
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(state.alive.back(), &attributes, IBV_QP_STATE);
}

[[gnu::constructor]] void Watch() {
  const char* prefix = std::getenv("SHOAL_TEST_BREAK");
  if (prefix == nullptr) {
    return;
  }
  const std::string file = std::string(prefix) + "-" + program_invocation_short_name;
  std::thread([file] {
    while (true) {
      BreakOneIfAsked(file);
      usleep(10000);
    }
  }).detach();
}

}  // namespace

extern "C" {

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  ibv_qp* const made = Real<ibv_qp*(ibv_pd*, ibv_qp_init_attr*)>("ibv_create_qp")(pd, attributes);
  if (made != nullptr) {
    const std::lock_guard lock(TheState().mutex);
    TheState().alive.push_back(made);
  }
  return made;
}

int ibv_destroy_qp(ibv_qp* qp) {
  {
    const std::lock_guard lock(TheState().mutex);
    std::erase(TheState().alive, qp);
  }
  return Real<int(ibv_qp*)>("ibv_destroy_qp")(qp);
}

}  // extern "C"
