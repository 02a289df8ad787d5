// Words between stages, over links within the process.
#include "worker/pipeline/links/link_words.h"

#include <vector>

#include "absl/time/clock.h"
#include "core/base/status.h"
#include "gtest/gtest.h"
#include "worker/pipeline/links/in_process_links.h"

namespace shoal::worker {
namespace {

TEST(LinkWords, HaveRoomForAsManyAsThereArePlacesForMessages) {
  const std::vector<plan::MessageQueue> queues = {
      {.from = 0, .to = 1, .messages = 40, .slots = 3, .send_buffers = 2},
      {.from = 1, .to = 0, .gradients = true, .messages = 40, .slots = 4, .send_buffers = 2},
      {.from = 2, .to = 1, .messages = 1, .slots = 1, .send_buffers = 1}};
  const std::vector<plan::MessageQueue> words = WordQueues(queues);
  ASSERT_EQ(words.size(), 4U);
  EXPECT_EQ(words[0], (plan::MessageQueue{
                          .from = 0, .to = 1, .messages = 81, .slots = 12, .send_buffers = 12}));
  EXPECT_EQ(words[3],
            (plan::MessageQueue{.from = 2, .to = 1, .messages = 2, .slots = 2, .send_buffers = 2}));
  EXPECT_EQ(WordBytes(words).size(), 81U);
  EXPECT_EQ(WordBytes(words)[0], kLongestWordBytes);
}

// Of links that some time of theirs has closed it is said at once, not taken for silence.
TEST(LinkWords, AreHeardUntilTheLinksAreClosed) {
  const std::vector<plan::MessageQueue> words = WordQueues(std::vector<plan::MessageQueue>{
      {.from = 0, .to = 1, .messages = 1, .slots = 1, .send_buffers = 1}});
  const std::vector<int64_t> bytes = WordBytes(words);
  InProcessPipeline host(2);
  std::vector<LinkWords> stages = {LinkWords(0, 1), LinkWords(1, 0)};
  for (const int stage : {0, 1}) {
    ASSERT_TRUE(host.links(stage).BeginStep({.queues = words, .bytes = bytes}).ok());
    ASSERT_TRUE(stages[static_cast<size_t>(stage)].BeginStep(host.links(stage), words, false).ok());
  }
  EXPECT_TRUE(host.links(0).status().ok());
  const LinkWord said{.from = 0, .microbatch = 3};
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
