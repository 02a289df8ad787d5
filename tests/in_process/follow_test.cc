// Workers go on by the next shard map with the connections that they have.
#include "gtest/gtest.h"
#include "tests/in_process/tiny_job.h"

namespace shoal::testing {
namespace {

class FollowTest : public TinyJobTest {
 protected:
  FollowTest() {
    plan::ModelSpec spec = *plan::NamedShape("tiny");
    spec.vocabulary = 12288;  // state enough for some waves
    MakeModel(spec);
    MakeSamples(40, 16);
    job_.train.steps = 70;  // a wish has at most 64 waves
    job_.train.minibatch_samples = 1;
    job_.service.accumulate = plan::Accumulate::kExact;
  }
};

// In the first wave a server comes to hold more, and in the last one leaves: there workers connect
// to all servers that are left.
TEST_F(FollowTest, AWorkerConnectsAnewInTheFirstAndLastWaveOfAWish) {
  const ClusterRun still = Run({.servers = 2});
  EXPECT_EQ(still.connections, 2);
  const ClusterRun scaled = Run({.servers = 3, .wanted_servers = 2});
  ExpectSameBits(scaled, still);
  EXPECT_EQ(scaled.scaling.servers(), 2);
  EXPECT_EQ(scaled.scaling.bytes_left(), 0);
  EXPECT_EQ(scaled.scaling.rollbacks(), 0);
  const int waves = scaled.scaling.waves_size();
  ASSERT_GE(waves, 4);
  EXPECT_GE(scaled.connections, 3 + 3 + 2);
  EXPECT_LT(scaled.connections, 3 * waves + 2) << "it has followed no map in " << waves << " waves";
}

}  // namespace
}  // namespace shoal::testing
