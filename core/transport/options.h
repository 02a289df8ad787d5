// What every transport is made with. Each one reads what concerns it and ignores the rest.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "core/transport/verbs_options.h"

namespace shoal::transport {

class GpuMemory;

struct TransportOptions {
  // tcp: where peers dial. Port 0 picks a free one. A wildcard host ("0.0.0.0", "::") needs
  // advertise_host, the name or address that peers can reach.
  std::string listen_host = "127.0.0.1";
  int listen_port = 0;
  std::string advertise_host;

  // A peer of which nothing has been heard for this long is taken for dead. (shm learns of a death
  // from the kernel at once.)
  absl::Duration keep_alive = absl::Seconds(10);

  // tcp: threads that move bytes; connections are spread over them. One saturates a
  // memory-bandwidth-bound loopback and links up to about 40 Gbit/s. Where there is one, who waits
  // on a queue again and again does its work (tcp/sockets.h).
  int io_threads = 1;

  // tcp: SO_SNDBUF and SO_RCVBUF. 0 takes 1 MiB where the peer is on this host, which stays in the
  // cache and keeps both ends busy, and the kernel's autotuning elsewhere, which long fat links
  // need.
  int socket_buffer_bytes = 0;

  // How long EventQueue::Wait, and a tcp I/O thread, looks before it sleeps: a wake-up costs tens
  // of microseconds. Up to eight times as long where recent waits were that short, and hardly at
  // all where they were longer (adaptive_spin.h). It yields the core between looks.
  absl::Duration spin = absl::Microseconds(20);

  VerbsOptions verbs;

  // shm and verbs: lets memory of a GPU be registered, to be read into and written from without a
  // copy in between. Null where there is none (core/transport/gpu_memory.h).
  std::shared_ptr<GpuMemory> gpu_memory;

  // shm: of a job whose workers compute on GPUs. Most GPUs copy at full rate out of memory alone
  // that their process maps for writing, so what peers may read is not sealed against that
  // (shm/region.h says what then keeps them from writing it). Both ends are told the same.
  bool gpu_job = false;
};

}  // namespace shoal::transport
