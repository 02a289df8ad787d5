// Units that are in files, which a client reads itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "client/testing/client_rig.h"
#include "core/base/bf16.h"
#include "core/base/status.h"

namespace shoal::client {
namespace {

using ::testing::HasSubstr;

// More than is read in one turn.
constexpr int64_t kLarge = (int64_t{1} << 20) + 64;

float Value(int unit, int64_t element) {
  return std::sin(static_cast<float>(unit + 1) * static_cast<float>(element));
}

RigOptions Options() { return {.frozen = {0, 1, 2}, .from_files = {0, 2}}; }

class FilesTest : public ::testing::Test {
 protected:
  // Reads units of the rig; fails where it is told to.
  plan::UnitReader Reader() {
    return [this](int unit, int64_t offset, std::span<float> out) -> absl::Status {
      if (failing_) {
        return Unavailable("the disk is gone");
      }
      read_ += std::ssize(out);
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = Value(unit, offset + static_cast<int64_t>(i));
      }
      return absl::OkStatus();
    };
  }

  std::atomic<bool> failing_ = false;
  std::atomic<int64_t> read_ = 0;  // elements
};

TEST_F(FilesTest, AreRoundedAsIfTheyHadTravelled) {
  for (const DType wire : {DType::kF32, DType::kBF16}) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      RigOptions options = Options();
      options.wire_type = wire;
      ClientRig rig(options);
      rig.Publish(0);
      const auto client = *rig.NewClient({.compute_type = compute, .files = Reader()});
      ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
      for (const int unit : {0, 2}) {
        const auto view = client->Get(unit);
        ASSERT_TRUE(view.ok()) << view.status();
        ASSERT_EQ(view->count, rig.unit_specs[static_cast<size_t>(unit)].count);
        for (int64_t i = 0; i < view->count; ++i) {
          const float here = compute == DType::kF32
                                 ? static_cast<const float*>(view->data)[i]
                                 : static_cast<float>(static_cast<const BFloat16*>(view->data)[i]);
          const bool rounds = wire == DType::kBF16 || compute == DType::kBF16;
          const float value = Value(unit, i);
          ASSERT_EQ(here, rounds ? static_cast<float>(BFloat16(value)) : value);
        }
        client->Release(unit);
      }
    }
  }
}

TEST_F(FilesTest, AreAskedOfNoServerAndReadOnceWhereTheyAreKept) {
  for (const bool keep : {false, true}) {
    read_ = 0;
    ClientRig rig(Options());
    const auto client = *rig.NewClient({.files = Reader(), .keep_for_step = keep});
    int64_t in_files = 0;
    int64_t frozen = 0;
    int64_t trained = 0;
    for (const plan::UnitSpec& unit : rig.unit_specs) {
      (unit.from_files ? in_files : unit.frozen ? frozen : trained) += unit.count;
    }
    for (int64_t step = 1; step <= 3; ++step) {
      rig.Publish(step - 1);
      ASSERT_TRUE(client->BeginStep(step, 1, 5).ok());
      for (int unit = 0; unit < rig.units(); ++unit) {
        ASSERT_TRUE(client->Prefetch(unit));
        const auto view = client->Get(unit);
        ASSERT_TRUE(view.ok()) << view.status();
        EXPECT_EQ(view->last_server == -1, Options().from_files.contains(unit));
        client->Release(unit);
        client->Release(unit);
      }
    }
    EXPECT_EQ(read_, (keep ? 1 : 3) * in_files);
    EXPECT_EQ(client->statistics().transports[0].get_bytes,
              4 * (3 * trained + (keep ? 1 : 3) * frozen));
  }
}

TEST_F(FilesTest, AFailingReadIsNamedAndTriedAgainByTheNextAttempt) {
  for (const bool keep : {false, true}) {
    failing_ = true;
    ClientRig rig(Options());
    rig.Publish(0);
    const auto client = *rig.NewClient({.files = Reader(), .keep_for_step = keep});
    ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
    EXPECT_THAT(std::string(client->Get(2).status().message()),
                HasSubstr("get block.1: the disk is gone"));
    EXPECT_TRUE(client->Get(1).ok());
    failing_ = false;
    ASSERT_TRUE(client->BeginStep(1, 2, 5).ok());
    const auto view = client->Get(2);
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(static_cast<const float*>(view->data)[7], Value(2, 7));
  }
}

// Piece by piece, while what servers have goes on arriving.
TEST_F(FilesTest, LargeOnesAreReadInPieces) {
  ClientRig rig(Options());
  rig.unit_specs[0].count = kLarge;
  rig.Publish(0);
  std::atomic<int> pieces = 0;
  const auto client = *rig.NewClient(
      {.files = [&, reader = Reader()](int unit, int64_t offset, std::span<float> out) {
        ++pieces;
        return reader(unit, offset, out);
      }});
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  ASSERT_TRUE(client->Prefetch(0));
  ASSERT_TRUE(client->BeginStep(1, 2, 5).ok());  // whatever of it is under way
  const auto view = client->Get(0);
  ASSERT_TRUE(view.ok()) << view.status();
  ASSERT_EQ(view->count, kLarge);
  for (int64_t i = 0; i < kLarge; ++i) {
    ASSERT_EQ(static_cast<const float*>(view->data)[i], Value(0, i)) << i;
  }
  EXPECT_GE(pieces, 5);
}

}  // namespace
}  // namespace shoal::client
