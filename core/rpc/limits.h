// Numbers that both ends of a connection must agree on.
#pragma once

namespace shoal::rpc {

// Control messages are small; the largest is the work of a step with many thousand samples.
inline constexpr int kMaxMessageBytes = 64 << 20;

inline constexpr int kKeepAliveTimeMs = 5000;
inline constexpr int kKeepAliveTimeoutMs = 5000;

}  // namespace shoal::rpc
