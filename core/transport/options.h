// Options of all transports. Each transport reads what concerns it and ignores the rest.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "core/transport/verbs_options.h"

namespace shoal::transport {

class GpuMemory;

struct TransportOptions {
  // tcp: where peers dial. Port 0 picks a free one. A wildcard host ("0.0.0.0", "::") needs
  // advertise_host, a name or address that peers can reach.
  std::string listen_host = "127.0.0.1";
  int listen_port = 0;
  std::string advertise_host;

  // tcp: what is accepted is encrypted, and nothing else is connected to. Keys travel in the answer
  // of the handshake, so whoever carries that must encrypt it itself. shm needs none of this, verbs
  // has none.
  bool encrypt = false;

  // A peer that has been silent for this long counts as dead. (shm learns of a death from the
  // kernel at once.)
  absl::Duration keep_alive = absl::Seconds(10);

  // tcp: threads that move bytes; connections are spread over them. One saturates a
  // memory-bandwidth-bound loopback and links up to about 40 Gbit/s. A thread that keeps waiting on
  // a queue does the I/O thread's work itself (tcp/sockets.h).
  int io_threads = 1;

  // tcp: SO_SNDBUF and SO_RCVBUF. 0 takes 1 MiB where the peer is on this host, which stays in the
  // cache and keeps both ends busy, and the kernel's autotuning elsewhere, as long fat links need.
  int socket_buffer_bytes = 0;

  // How long EventQueue::Wait and a tcp I/O thread poll before they sleep, as a wake-up costs tens
  // of microseconds. Up to eight times as long if recent waits were that short, and hardly at all
  // if they were longer (adaptive_spin.h). Polling yields the core between looks.
  absl::Duration spin = absl::Microseconds(20);

  VerbsOptions verbs;

  // shm and verbs: lets GPU memory be registered, to be read into and written from without a copy
  // in between. Null if there is none (core/transport/gpu_memory.h).
  std::shared_ptr<GpuMemory> gpu_memory;

  // shm: for a job whose workers compute on GPUs. Most GPUs copy at full rate only from memory that
  // their process maps for writing, so read-only memory is then not sealed against peers' writes
  // (shm/region.h says what keeps them from writing it). Both ends must agree on this.
  bool gpu_job = false;
};

}  // namespace shoal::transport
