// shoal-bench-ucx: how fast UCX moves blocks of bytes between two processes of one machine, for
// `shoal bench transport --against ucx` to run:
//
//   UCX_TLS=posix shoal-bench-ucx BYTES SECONDS MEMORY_BYTES
//
// ucx_perftest sends one buffer again and again, which the caches then hold. Here both processes
// walk through MEMORY_BYTES. One process, the fetcher, fetches from the other, the owner, in the
// two ways that UCX has: one-sided (get), and by tagged messages (tag), where latency is that of an
// empty request answered by one block. Throughput is taken with one and with four in flight. Prints
// one line of JSON.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int kMostInFlight = 4;
constexpr int64_t kMostLatencySamples = 2000;
constexpr ucp_tag_t kRequestTag = 1;
constexpr ucp_tag_t kBlockTag = 2;
constexpr int kPollsPerLook = 64;  // at the control socket, by the owner

[[noreturn]] void Fail(const char* what, const char* why) {
  std::fprintf(stderr, "shoal-bench-ucx: %s: %s\n", what, why);
  _exit(1);
}

void Check(ucs_status_t status, const char* what) {
  if (status != UCS_OK) {
    Fail(what, ucs_status_string(status));
  }
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The control channel between the two processes.
void SendAll(int socket, const void* data, size_t size) {
  if (send(socket, data, size, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) {
    Fail("control channel", "the other process is gone");
  }
}
void ReceiveAll(int socket, void* data, size_t size) {
  if (recv(socket, data, size, MSG_WAITALL) != static_cast<ssize_t>(size)) {
    Fail("control channel", "the other process is gone");
  }
}
void SendString(int socket, const std::string& text) {
  const uint64_t size = text.size();
  SendAll(socket, &size, sizeof size);
  SendAll(socket, text.data(), text.size());
}
std::string ReceiveString(int socket) {
  uint64_t size = 0;
  ReceiveAll(socket, &size, sizeof size);
  std::string text(size, '\0');
  ReceiveAll(socket, text.data(), text.size());
  return text;
}

// What the fetcher asks of the owner.
struct Command {
  enum Kind : int64_t { kEnd, kSend };
  int64_t kind = kEnd;
  int64_t blocks = 0;
  int64_t in_flight = 0;
  int64_t by_request = 0;  // each block after a request
};

class Endpoint {
 public:
  Endpoint(int control, int64_t block_bytes, int64_t memory_bytes)
      : control_(control),
        bytes_(block_bytes),
        count_(std::max<int64_t>(memory_bytes / block_bytes, kMostInFlight)) {
    ucp_config_t* config = nullptr;
    Check(ucp_config_read(nullptr, nullptr, &config), "reading the configuration");
    ucp_params_t params = {};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_RMA;
    Check(ucp_init(&params, config, &context_), "starting UCX");
    ucp_config_release(config);
    ucp_worker_params_t worker_params = {};
    worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
    Check(ucp_worker_create(context_, &worker_params, &worker_), "making a worker");
    MapMemory();
    Connect();
  }

  void Serve() {
    for (Command command;;) {
      for (int i = 0; i < kPollsPerLook; ++i) {
        ucp_worker_progress(worker_);
      }
      const ssize_t got = recv(control_, &command, sizeof command, MSG_DONTWAIT);
      if (got == 0) {
        Fail("control channel", "the other process is gone");
      }
      if (got != sizeof command) {
        continue;
      }
      if (command.kind == Command::kEnd) {
        return;
      }
      SendBlocks(command);
    }
  }

  double Latency(bool one_sided, double seconds) {
    std::vector<double> samples;
    const double end = Now() + seconds;
    // The owner must know how many requests come: a warm-up tells how many fit.
    for (int64_t count : {int64_t{10}, int64_t{0}}) {
      if (count == 0) {
        const double each = std::max(samples[samples.size() / 2], 1e-7);
        count =
            std::clamp<int64_t>(static_cast<int64_t>((end - Now()) / each), 5, kMostLatencySamples);
        samples.clear();
      }
      if (!one_sided) {
        Ask({.kind = Command::kSend, .blocks = count, .in_flight = 1, .by_request = 1});
      }
      for (int64_t i = 0; i < count; ++i) {
        const double start = Now();
        if (one_sided) {
          Wait(Get(i));
        } else {
          void* block = ReceiveBlock(i);
          Wait(SendTag(kRequestTag, memory_, 0));
          Wait(block);
        }
        samples.push_back(Now() - start);
      }
      std::sort(samples.begin(), samples.end());
    }
    return samples[samples.size() / 2];
  }

  double Throughput(bool one_sided, double seconds, int in_flight) {
    for (int64_t count = 2 * in_flight;;) {
      if (!one_sided) {
        Ask({.kind = Command::kSend, .blocks = count, .in_flight = in_flight});
      }
      const double start = Now();
      std::vector<void*> requests(static_cast<size_t>(in_flight), nullptr);
      for (int64_t i = 0; i < count; ++i) {
        void*& request = requests[static_cast<size_t>(i % in_flight)];
        Wait(request);
        request = one_sided ? Get(i) : ReceiveBlock(i);
      }
      for (void* request : requests) {
        Wait(request);
      }
      const double took = Now() - start;
      if (took >= seconds / 2) {
        return static_cast<double>(count * bytes_) / took;
      }
      const auto wanted = static_cast<int64_t>(seconds * static_cast<double>(count) / took);
      count = std::clamp<int64_t>(wanted, 2 * count, 64 * count);
    }
  }

  void End() { Ask({.kind = Command::kEnd}); }

 private:
  void MapMemory() {
    ucp_mem_map_params_t params = {};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    params.length = static_cast<size_t>(count_ * bytes_);
    params.flags = UCP_MEM_MAP_ALLOCATE;
    Check(ucp_mem_map(context_, &params, &memory_handle_), "allocating memory");
    ucp_mem_attr_t attributes = {};
    attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
    Check(ucp_mem_query(memory_handle_, &attributes), "allocating memory");
    memory_ = static_cast<char*>(attributes.address);
    std::memset(memory_, 'm', params.length);
  }

  void Connect() {
    ucp_address_t* address = nullptr;
    size_t address_size = 0;
    Check(ucp_worker_get_address(worker_, &address, &address_size), "taking the address");
    SendString(control_, {reinterpret_cast<const char*>(address), address_size});
    ucp_worker_release_address(worker_, address);
    void* key = nullptr;
    size_t key_size = 0;
    Check(ucp_rkey_pack(context_, memory_handle_, &key, &key_size), "packing the remote key");
    SendString(control_, {static_cast<const char*>(key), key_size});
    ucp_rkey_buffer_release(key);
    const auto base = reinterpret_cast<uint64_t>(memory_);
    SendAll(control_, &base, sizeof base);

    const std::string peer_address = ReceiveString(control_);
    const std::string peer_key = ReceiveString(control_);
    ReceiveAll(control_, &remote_base_, sizeof remote_base_);
    ucp_ep_params_t params = {};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(peer_address.data());
    Check(ucp_ep_create(worker_, &params, &peer_), "connecting");
    Check(ucp_ep_rkey_unpack(peer_, peer_key.data(), &remote_key_), "unpacking the remote key");
  }

  void Ask(const Command& command) { SendAll(control_, &command, sizeof command); }

  void Wait(void* request) {
    if (request == nullptr) {
      return;
    }
    if (UCS_PTR_IS_ERR(request)) {
      Check(UCS_PTR_STATUS(request), "moving a block");
    }
    ucs_status_t status = UCS_INPROGRESS;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
      ucp_worker_progress(worker_);
    }
    Check(status, "moving a block");
    ucp_request_free(request);
  }

  char* Block(int64_t index) const { return memory_ + index % count_ * bytes_; }
  size_t size() const { return static_cast<size_t>(bytes_); }

  void* Get(int64_t index) {
    const ucp_request_param_t params = {};
    const uint64_t from = remote_base_ + static_cast<uint64_t>(index % count_ * bytes_);
    return ucp_get_nbx(peer_, Block(index), size(), from, remote_key_, &params);
  }
  void* SendTag(ucp_tag_t tag, const void* data, size_t size) {
    const ucp_request_param_t params = {};
    return ucp_tag_send_nbx(peer_, data, size, tag, &params);
  }
  void* ReceiveTag(ucp_tag_t tag, void* data, size_t size) {
    const ucp_request_param_t params = {};
    return ucp_tag_recv_nbx(worker_, data, size, tag, ~ucp_tag_t{0}, &params);
  }
  void* ReceiveBlock(int64_t index) { return ReceiveTag(kBlockTag, Block(index), size()); }

  void SendBlocks(const Command& command) {
    std::vector<void*> requests(static_cast<size_t>(command.in_flight), nullptr);
    for (int64_t i = 0; i < command.blocks; ++i) {
      void*& request = requests[static_cast<size_t>(i % command.in_flight)];
      Wait(request);
      if (command.by_request != 0) {
        Wait(ReceiveTag(kRequestTag, nullptr, 0));
      }
      request = SendTag(kBlockTag, Block(i), size());
    }
    for (void* request : requests) {
      Wait(request);
    }
  }

  const int control_;
  const int64_t bytes_;
  const int64_t count_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_mem_h memory_handle_ = nullptr;
  char* memory_ = nullptr;
  ucp_ep_h peer_ = nullptr;
  ucp_rkey_h remote_key_ = nullptr;
  uint64_t remote_base_ = 0;
};

void Fetch(Endpoint& endpoint, double seconds) {
  std::string line;
  const char* separator = "{";
  for (const bool one_sided : {true, false}) {
    const double latency = endpoint.Latency(one_sided, seconds);
    const double one = endpoint.Throughput(one_sided, seconds, 1);
    const double four = endpoint.Throughput(one_sided, seconds, kMostInFlight);
    const char* way = one_sided ? "get" : "tag";
    char text[256];
    std::snprintf(text, sizeof text,
                  "%s\"%s_latency_seconds\": %.9g, \"%s_bytes_per_second_1_in_flight\": %.9g, "
                  "\"%s_bytes_per_second_4_in_flight\": %.9g",
                  separator, way, latency, way, one, way, four);
    line += text;
    separator = ", ";
  }
  std::printf("%s}\n", line.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t bytes = argc == 4 ? std::atoll(argv[1]) : 0;
  const double seconds = argc == 4 ? std::atof(argv[2]) : 0;
  const int64_t memory = argc == 4 ? std::atoll(argv[3]) : 0;
  if (bytes < 1 || seconds <= 0 || memory < 0) {
    std::fprintf(stderr, "usage: shoal-bench-ucx BYTES SECONDS MEMORY_BYTES\n");
    return 2;
  }
  int control[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, control) != 0) {
    Fail("control channel", std::strerror(errno));
  }
  const pid_t fetcher = getpid();
  const pid_t owner = fork();
  if (owner == 0) {
    // It polls without end for a peer that may be gone, where a signal alone reaches it.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != fetcher) {
      _exit(1);
    }
    close(control[0]);
    Endpoint(control[1], bytes, memory).Serve();
    _exit(0);
  }
  close(control[1]);
  Endpoint endpoint(control[0], bytes, memory);
  Fetch(endpoint, seconds);
  endpoint.End();
  waitpid(owner, nullptr, 0);
  _exit(0);  // the peer is gone, so nothing is left to be torn down with it
}
