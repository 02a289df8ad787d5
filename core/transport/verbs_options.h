// Options of the verbs transport: which devices it uses and how it makes queue pairs and their
// queues. The defaults suit most fabrics; each one's comment gives the reason.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace shoal::transport {

struct VerbsOptions {
  // The devices to use, in this order: "mlx5_0", or "mlx5_0:2" for a port. Empty: all suitable
  // ones, nearest to this process (or to the GPUs of TransportOptions::gpu_memory) first
  // (verbs/topology/device_choice.h).
  std::vector<std::string> devices;
  // Index of the GID that peers address on Ethernet; -1 chooses by the rules of
  // verbs/topology/device_choice.h.
  int gid_index = -1;
  // How often an unanswered packet is sent again. Not 7: soft-RoCE takes 7 for "forever", and a
  // killed peer would hold up its operations until the keep-alive.
  uint8_t retry_count = 6;
  // Exponent of the wait for an acknowledgement, 4.096 us * 2^n: 67 ms. With the retries a dead
  // peer is noticed after half a second to four seconds (vendors round it up), and a switch that
  // reconverges within that time goes unnoticed.
  uint8_t ack_timeout = 14;
  // Receives are posted before a peer may ring (doorbells are counted), so "receiver not ready" is
  // rare: it must not end the connection, nor be waited out at the longest timer (0 is 655 ms). 12
  // is 0.64 ms.
  uint8_t rnr_retry = 6;
  uint8_t rnr_timer = 12;

  // The traffic class of a lossless fabric: on Ethernet the IP traffic class (DSCP * 4), on
  // InfiniBand the service level.
  uint8_t traffic_class = 0;
  uint8_t service_level = 0;

  // Size of the largest packet. 0 takes the largest that both ports have active.
  int mtu_bytes = 0;
  // Concurrent reads per queue pair; 0 takes what both devices can do.
  int reads_in_flight = 0;

  // Work requests that a queue pair holds; the rest waits in memory. Enough for a large batch of
  // small reads; clamped to the device's limit.
  int send_depth = 512;
  // Writes up to this size travel in the work request itself: headers and acknowledgements (64 and
  // 128 bytes) then cost the sending device no read of host memory.
  int inline_bytes = 128;
  // One in this many work requests of a batch asks for a completion; the last one always does.
  // Fewer completions cost less, but delay the events of earlier operations.
  int signal_interval = 16;

  // A large operation is cut into pieces of at most this size, so that the device's queues do not
  // run dry at its end, and it can be spread over rails. 0 takes the port's largest message.
  int64_t piece_bytes = int64_t{1} << 20;
  // Reads from this size on are spread over all rails of the connection.
  int64_t spread_bytes = int64_t{4} << 20;
  // The most rails (device and port) used at once.
  int max_rails = 4;

  // How long Close waits for the peer to learn of it. A peer that does not learn by then notices by
  // its keep-alive.
  absl::Duration goodbye_patience = absl::Milliseconds(300);
};

}  // namespace shoal::transport
