#include "worker/pipeline/links/link_layout.h"

#include <cstddef>

#include "core/base/bytes.h"
#include "worker/backend/backend.h"
#include "xxhash.h"

namespace shoal::worker {
namespace {

constexpr int kKindShift = 30;
constexpr int kGradientsShift = 29;
constexpr int kNumberShift = 16;

uint64_t HashOf(const StageMessageHeader& header) {
  return XXH3_64bits(&header, offsetof(StageMessageHeader, hash));
}

}  // namespace

void Seal(StageMessageHeader& header) {
  header.magic = kStageMessageMagic;
  header.hash = HashOf(header);
}

bool IsWhole(const StageMessageHeader& header) {
  return header.magic == kStageMessageMagic && header.hash == HashOf(header);
}

uint32_t Encode(const LinkDoorbell& doorbell) {
  return static_cast<uint32_t>(doorbell.kind) << kKindShift |
         (doorbell.gradients ? 1U : 0U) << kGradientsShift |
         (doorbell.number % kLinkNumbers) << kNumberShift | (doorbell.slot % kMaxLinkSlots);
}

LinkDoorbell DecodeDoorbell(uint32_t immediate) {
  return {.kind = static_cast<LinkDoorbell::Kind>(immediate >> kKindShift),
          .gradients = (immediate >> kGradientsShift & 1) != 0,
          .number = immediate >> kNumberShift & (kLinkNumbers - 1),
          .slot = immediate & (kMaxLinkSlots - 1)};
}

LinkLayout LayOut(std::span<const plan::MessageQueue> queues, int from, int to,
                  int64_t longest_message) {
  LinkLayout layout;
  for (const plan::MessageQueue& queue : queues) {
    if (queue.from == from && queue.to == to) {
      layout.slots[queue.gradients ? 1 : 0].count = queue.slots;
      layout.buffers[queue.gradients ? 1 : 0].count = queue.send_buffers;
    }
  }
  const int64_t stride = RoundUp(kStageMessageHeaderBytes + longest_message, kBufferAlignment);
  for (BufferLayout* pieces : {layout.slots, layout.buffers}) {
    pieces[0].stride = pieces[1].stride = stride;
    pieces[1].first = pieces[0].count;
  }
  return layout;
}

}  // namespace shoal::worker
