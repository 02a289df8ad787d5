// verbs: which devices are used and how queue pairs and their queues are made. The defaults are
// right for most fabrics; each says why it is what it is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace shoal::transport {

struct VerbsOptions {
  // The devices to use, "mlx5_0" or "mlx5_0:2" for a port, in this order. Empty: all that are fit,
  // nearest to this process (or to the GPUs of TransportOptions::gpu_memory) first
  // (verbs/topology/device_choice.h).
  std::vector<std::string> devices;
  // Of the GID that peers address on Ethernet; -1 chooses by the rules of
  // verbs/topology/device_choice.h.
  int gid_index = -1;
  // Times that an unanswered packet is sent again. Not 7: soft-RoCE takes 7 for "for ever", and a
  // peer that was killed would hold its operations up until the keep-alive.
  uint8_t retry_count = 6;
  // Exponent of the wait for an acknowledgement, 4.096 us * 2^n: 67 ms. With the retries a dead
  // peer is known after half a second to four seconds (vendors round it up), and a switch that
  // reconverges within that goes unnoticed.
  uint8_t ack_timeout = 14;
  // Receives are posted before a peer may ring (doorbells are counted), so "receiver not ready" is
  // rare: it must not end the connection, nor be waited out at the longest timer (0 is 655 ms). 12
  // is 0.64 ms.
  uint8_t rnr_retry = 6;
  uint8_t rnr_timer = 12;

  // The class of traffic of a lossless fabric: on Ethernet the IP traffic class (DSCP * 4), on
  // InfiniBand the service level.
  uint8_t traffic_class = 0;
  uint8_t service_level = 0;

  // Bytes of the largest packet. 0 takes the largest that both ports have active.
  int mtu_bytes = 0;
  // Reads under way at once, per queue pair; 0 takes what both devices can do.
  int reads_in_flight = 0;

  // Work requests that a queue pair holds; what does not fit waits in memory. Enough for a large
  // batch of small reads, and clamped to what the device has.
  int send_depth = 512;
  // Writes up to this many bytes travel in the work request itself: headers and acknowledgements
  // (64 and 128 bytes) then cost the sending device no read of host memory.
  int inline_bytes = 128;
  // One in so many work requests of a batch asks for a completion; the last of a batch always does.
  // Fewer completions cost less, but hold back the events of the operations before them.
  int signal_interval = 16;

  // A large operation is cut into pieces of this many bytes at most, so that the device's queues do
  // not run dry at its end, and it can be spread over rails. 0 takes the port's largest message.
  int64_t piece_bytes = int64_t{1} << 20;
  // Reads from this size on are spread over all rails that the connection has.
  int64_t spread_bytes = int64_t{4} << 20;
  // Rails (device and port) used at once.
  int max_rails = 4;

  // How long Close waits until the peer has heard of it. A peer that has not learns from its
  // keep-alive.
  absl::Duration goodbye_patience = absl::Milliseconds(300);
};

}  // namespace shoal::transport
