#include "core/transport/tcp/frame.h"

#include "core/base/status.h"
#include "core/transport/transport.h"

namespace shoal::transport {

absl::Status CheckFrame(const TcpFrame& frame) {
  if (frame.magic != kTcpMagic) {
    return InvalidArgument("not a Shoal tcp frame");
  }
  const auto type = static_cast<uint8_t>(frame.type);
  if (type < static_cast<uint8_t>(TcpFrameType::kHello) ||
      type > static_cast<uint8_t>(TcpFrameType::kGoodbye)) {
    return InvalidArgument("unknown frame type {}", type);
  }
  const uint8_t flags_allowed = frame.type == TcpFrameType::kWrite ? kLastOfWrite | kRing : 0;
  if ((frame.flags & ~flags_allowed) != 0 || frame.reserved != 0 || frame.flags == kRing) {
    return InvalidArgument("impossible flags in a frame of type {}", type);
  }
  const uint64_t largest =
      frame.type <= TcpFrameType::kRefusal ? kMaxHandshakeBytes : kMaxPayloadBytes;
  if (frame.has_payload() && frame.length > largest) {
    return InvalidArgument("a frame of type {} announces {} bytes, at most {} are allowed", type,
                           frame.length, largest);
  }
  return absl::OkStatus();
}

}  // namespace shoal::transport
