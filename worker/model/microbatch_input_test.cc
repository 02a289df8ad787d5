// Memory that copies still read is not freed, and nobody waits for them forever.
#include "worker/model/microbatch_input.h"

#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

// A stream of a device that hangs: work put on it is never done.
class HungStream final : public Stream {
 public:
  struct Put {
    const void* from;
    int64_t bytes;
  };

  void Copy(void*, const void* from, int64_t bytes) override { copies.push_back({from, bytes}); }
  void Fill(void*, std::byte, int64_t) override {}
  std::unique_ptr<Event> Record() override { return std::make_unique<HungEvent>(*this); }
  void WaitFor(const Event&) override {}
  absl::Status Synchronize() override { std::abort(); }

  std::vector<Put> copies;
  std::vector<absl::Duration> waits;

 private:
  class HungEvent final : public Event {
   public:
    explicit HungEvent(HungStream& stream) : stream_(stream) {}
    bool WaitDone(absl::Duration timeout) override {
      stream_.waits.push_back(timeout);
      return false;
    }
    absl::Status Wait() override { std::abort(); }  // it would not end
    absl::Time at() const override { std::abort(); }

   private:
    HungStream& stream_;
  };
};

TEST(MicrobatchInput, LeavesToADeviceThatHangsWhatItMayYetRead) {
  std::vector<int32_t> ids(1000);
  std::iota(ids.begin(), ids.end(), 1);
  PackedBatch batch;
  batch.AppendNextToken(ids);
  Carver measure(nullptr);
  MicrobatchInput::CarveLargest(measure, batch.token_count());
  std::vector<std::byte> device(static_cast<size_t>(measure.bytes()));
  HungStream stream;
  {
    MicrobatchInput input = *MicrobatchInput::Create(batch, 2000);
    Carver carver(device.data());
    input.Carve(carver);
    input.Load(stream);
  }
  ASSERT_EQ(stream.waits.size(), 1U);
  EXPECT_LT(stream.waits[0], absl::Hours(1));
  ASSERT_EQ(stream.copies.size(), 5U);
  ASSERT_EQ(stream.copies[0].bytes, 4000);
  const auto* const tokens = static_cast<const int32_t*>(stream.copies[0].from);
  EXPECT_EQ(std::vector<int32_t>(tokens, tokens + ids.size()), ids);
}

}  // namespace
}  // namespace shoal::worker
