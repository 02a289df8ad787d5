// Control messages between stages, over links within the process.
#include "worker/pipeline/links/link_control.h"

#include <vector>

#include "absl/time/clock.h"
#include "core/base/status.h"
#include "gtest/gtest.h"
#include "worker/pipeline/links/in_process_links.h"

namespace shoal::worker {
namespace {

TEST(LinkControl, HaveRoomForAsManyAsThereArePlacesForMessages) {
  const std::vector<plan::MessageQueue> queues = {
      {.from = 0, .to = 1, .messages = 40, .slots = 3, .send_buffers = 2},
      {.from = 1, .to = 0, .gradients = true, .messages = 40, .slots = 4, .send_buffers = 2},
      {.from = 2, .to = 1, .messages = 1, .slots = 1, .send_buffers = 1}};
  const std::vector<plan::MessageQueue> control = ControlQueues(queues);
  ASSERT_EQ(control.size(), 4U);
  EXPECT_EQ(control[0], (plan::MessageQueue{
                            .from = 0, .to = 1, .messages = 81, .slots = 12, .send_buffers = 12}));
  EXPECT_EQ(control[3],
            (plan::MessageQueue{.from = 2, .to = 1, .messages = 2, .slots = 2, .send_buffers = 2}));
  EXPECT_EQ(ControlBytes(control).size(), 81U);
  EXPECT_EQ(ControlBytes(control)[0], kLongestControlBytes);
}

// Links closed by a timeout of their own fail at once: that is not silence.
TEST(LinkControl, AreHeardUntilTheLinksAreClosed) {
  const std::vector<plan::MessageQueue> control = ControlQueues(std::vector<plan::MessageQueue>{
      {.from = 0, .to = 1, .messages = 1, .slots = 1, .send_buffers = 1}});
  const std::vector<int64_t> bytes = ControlBytes(control);
  InProcessPipeline host(2);
  std::vector<LinkControl> stages = {LinkControl(0, 1), LinkControl(1, 0)};
  for (const int stage : {0, 1}) {
    ASSERT_TRUE(host.links(stage).BeginStep({.queues = control, .bytes = bytes}).ok());
    ASSERT_TRUE(
        stages[static_cast<size_t>(stage)].BeginStep(host.links(stage), control, false).ok());
  }
  EXPECT_TRUE(host.links(0).status().ok());
  const ControlMessage said{.from = 0, .microbatch = 3};
  ASSERT_TRUE(stages[1].Say(said).ok());
  const absl::Time begun = absl::Now();
  const auto in_time = [&] {
    return absl::Now() - begun < absl::Seconds(30) ? absl::OkStatus()
                                                   : absl::AbortedError("not heard");
  };
  const auto heard = stages[0].Hear(in_time);
  ASSERT_TRUE(heard.ok()) << heard.status();
  EXPECT_TRUE(*heard == said);
  host.links(0).Close(DeadlineExceeded("a message did not come"));
  EXPECT_EQ(Message(host.links(0).status()), "a message did not come");
  EXPECT_TRUE(absl::IsUnavailable(host.links(1).status()));
  EXPECT_EQ(Message(stages[0].Hear(in_time).status()), "a message did not come");
}

}  // namespace
}  // namespace shoal::worker
