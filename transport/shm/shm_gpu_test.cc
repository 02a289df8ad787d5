// shm into and out of memory of a GPU, which the processor cannot touch.
#include <algorithm>
#include <memory>

#include "common/bytes.h"
#include "common/random.h"
#include "common/status.h"
#include "transport/shm/shm_transport.h"
#include "transport/testing/conformance.h"
#include "transport/testing/guarded_gpu.h"

namespace shoal::transport {
namespace {

constexpr int64_t kGpuBytes = 64 * kMiB;
constexpr size_t kBytes = 40 * kMiB;  // more than one copy of a GPU

class ShmGpuTest : public testing::Test {
 protected:
  std::unique_ptr<Side> MakeSide(std::shared_ptr<GpuMemory> gpu) {
    TransportOptions options;
    options.gpu_memory = std::move(gpu);
    return std::make_unique<Side>(*CreateShmTransport(options));
  }

  const std::shared_ptr<GuardedGpu> gpu_ = std::make_shared<GuardedGpu>(kGpuBytes);
  const std::unique_ptr<Side> worker_ = MakeSide(gpu_);
  const std::unique_ptr<Side> server_ = MakeSide(nullptr);
  Random random_{TestSeed()};
};

TEST_F(ShmGpuTest, ReadsLandOnTheGpu) {
  auto weights = server_->Allocate(kBytes, Access::kRemoteRead);
  FillRandom(weights->bytes(), random_);
  const auto frame = *worker_->transport().Register(gpu_->memory(), Access::kLocal);
  Pair pair = Connect(*worker_, worker_->Options(), *server_, server_->Options({weights}));
  EXPECT_EQ(gpu_->pinned(), 0u) << "nothing was copied by a GPU yet";
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(
        ReadNow(*worker_, *pair.connector,
                {.id = 1, .region = 0, .offset = 100, .into = gpu_->memory().first(kBytes - 100)})
            .ok());
    EXPECT_TRUE(
        std::ranges::equal(weights->bytes().subspan(100), gpu_->contents().first(kBytes - 100)));
    EXPECT_EQ(gpu_->pinned(), 1u);
    std::ranges::fill(gpu_->contents(), std::byte{0});
  }
  EXPECT_EQ(gpu_->copies(), 2 * 3);
  pair.connector->Close();
  EXPECT_EQ(gpu_->pinned(), 0u);
}

TEST_F(ShmGpuTest, WritesComeFromTheGpu) {
  auto slots = server_->Allocate(kBytes, Access::kRemoteWrite);
  FillRandom(gpu_->contents(), random_);
  const auto gradient = *worker_->transport().Register(gpu_->memory(), Access::kLocal);
  Pair pair = Connect(*worker_, worker_->Options(), *server_, server_->Options({slots}));
  ASSERT_TRUE(WriteNow(*worker_, *pair.connector,
                       {.id = 1,
                        .region = 0,
                        .offset = 0,
                        .from = gpu_->memory().first(kBytes),
                        .ring = true,
                        .immediate = 7})
                  .ok());
  const std::vector<Event> rung = server_->Collect(1);
  ASSERT_EQ(rung.size(), 1u);
  EXPECT_EQ(rung[0].immediate, 7u);
  EXPECT_TRUE(std::ranges::equal(slots->bytes(), gpu_->contents().first(kBytes)));
}

TEST_F(ShmGpuTest, MemoryOfTheHostGoesAsBefore) {
  auto weights = server_->Allocate(4096, Access::kRemoteRead);
  FillRandom(weights->bytes(), random_);
  auto frame = worker_->Allocate(4096, Access::kLocal);
  Pair pair = Connect(*worker_, worker_->Options(), *server_, server_->Options({weights}));
  ASSERT_TRUE(ReadNow(*worker_, *pair.connector,
                      {.id = 1, .region = 0, .offset = 0, .into = frame->bytes()})
                  .ok());
  EXPECT_TRUE(std::ranges::equal(weights->bytes(), frame->bytes()));
  EXPECT_EQ(gpu_->copies(), 0);
}

TEST_F(ShmGpuTest, WithoutPinningItIsTheSameAndSlower) {
  gpu_->FailPins(Unimplemented("of the test"));
  auto weights = server_->Allocate(4096, Access::kRemoteRead);
  FillRandom(weights->bytes(), random_);
  const auto frame = *worker_->transport().Register(gpu_->memory(), Access::kLocal);
  Pair pair = Connect(*worker_, worker_->Options(), *server_, server_->Options({weights}));
  ASSERT_TRUE(ReadNow(*worker_, *pair.connector,
                      {.id = 1, .region = 0, .offset = 0, .into = gpu_->memory().first(4096)})
                  .ok());
  EXPECT_TRUE(std::ranges::equal(weights->bytes(), gpu_->contents().first(4096)));
}

TEST_F(ShmGpuTest, ACopyThatFailsFailsItsOperation) {
  gpu_->FailCopies(Internal("the GPU fell off the bus"));
  auto weights = server_->Allocate(4096, Access::kRemoteRead);
  const auto frame = *worker_->transport().Register(gpu_->memory(), Access::kLocal);
  Pair pair = Connect(*worker_, worker_->Options(), *server_, server_->Options({weights}));
  const absl::Status status =
      ReadNow(*worker_, *pair.connector,
              {.id = 1, .region = 0, .offset = 0, .into = gpu_->memory().first(4096)});
  EXPECT_THAT(std::string(Message(status)), testing::HasSubstr("fell off the bus"));
}

}  // namespace
}  // namespace shoal::transport
