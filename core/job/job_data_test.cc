// What keys of data say together, and with train.objective.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/job/job.h"
#include "proto/job.pb.h"

namespace shoal::plan {
namespace {

using testing::HasSubstr;

constexpr const char* kPretrain = "train.objective=pretrain";

absl::StatusOr<Job> Parse(const std::vector<std::string>& overrides) {
  return ParseJob("model: m\ndata: {train: train.jsonl}\n", "job.yaml", overrides, "/here");
}
std::string RefusedKeys(const std::vector<std::string>& overrides) {
  return std::string(Parse(overrides).status().message());
}

TEST(JobTemplate, IsANameOrAPath) {
  auto job = Parse({"data.template=chatml"});
  ASSERT_TRUE(job.ok()) << job.status();
  Resolve(*job, "/base", {});
  EXPECT_EQ(job->data.chat_template, "chatml");
  EXPECT_EQ(TemplateNamed("chatml"), Template::kChatML);

  job = Parse({"data.template=my/own.jinja"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->data.chat_template, "/here/my/own.jinja") << "of --set: of the working folder";
  job = ParseJob("model: m\ndata: {train: t, template: own.jinja}\n", "job.yaml");
  ASSERT_TRUE(job.ok()) << job.status();
  Resolve(*job, "/base", {});
  EXPECT_EQ(job->data.chat_template, "/base/own.jinja") << "of a file: of its folder";

  EXPECT_EQ(RefusedKeys({"data.template=chatlm"}),
            "--set data.template=chatlm: data.template is 'chatlm', expected auto, plain, chatml, "
            "llama3 or the path of a file.jinja");
}

// A job that waits in a coordinator's state outlives the release that it was saved by.
TEST(JobTemplate, IsReadAsTheReleaseBeforeSaidIt) {
  const auto read = [](std::optional<Template> earlier, const char* now) {
    proto::Job message;
    message.set_model("m");
    message.mutable_data()->set_train("t");
    if (earlier.has_value()) {
      message.mutable_data()->set_earlier_template(
          static_cast<proto::DataOptions::EarlierTemplate>(*earlier));
    }
    if (now != nullptr) {
      message.mutable_data()->set_template_(now);
    }
    const auto job = FromMessage(message, "the job");
    return job.ok() ? job->data.chat_template : std::string(job.status().message());
  };
  EXPECT_EQ(read(Template::kPlain, nullptr), "plain");
  EXPECT_EQ(read(Template::kLlama3, nullptr), "llama3");
  EXPECT_EQ(read(Template::kChatML, "own.jinja"), "own.jinja");
  EXPECT_EQ(read(std::nullopt, nullptr), "auto");
  EXPECT_THAT(RefusedKeys({"data.earlier_template=plain"}),
              HasSubstr("unknown key 'earlier_template' in data"));
}

TEST(JobDate, IsADay) {
  const auto job = Parse({"data.date=2026-02-28"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->data.date, "2026-02-28");
  for (const char* date : {"2026-02-29", "28.2.2026", "today", "2026-2-28"}) {
    EXPECT_THAT(RefusedKeys({std::string("data.date=") + date}),
                HasSubstr("' is no day; write it as 2026-11-27"))
        << date;
  }
}

TEST(JobObjective, HasKeysOfItsOwn) {
  const auto job = Parse({kPretrain, "data.documents=concatenate"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->train.objective, Objective::kPretrain);
  EXPECT_EQ(job->data.documents, Documents::kConcatenate);
  EXPECT_EQ(RefusedKeys({"data.documents=concatenate"}),
            "--set data.documents=concatenate: data.documents contradicts train.objective: it is "
            "of documents, for pretrain");
  for (const char* of_conversations : {"data.template=plain", "data.template_arguments={a: 1}",
                                       "data.train_on=last", "data.date=2026-11-27"}) {
    EXPECT_THAT(RefusedKeys({kPretrain, of_conversations}),
                HasSubstr("contradicts train.objective: pretrain has documents"))
        << of_conversations;
  }
  EXPECT_THAT(RefusedKeys({kPretrain, "data.oversize=skip"}),
              HasSubstr("data.oversize contradicts train.objective: pretrain cuts documents"));
}

TEST(ValidationOptions, AreDueAtTheirStepsAndAfterTheLast) {
  const auto due = [](const ValidationOptions& options) {
    std::vector<int64_t> steps;
    for (int64_t step = 0; step <= 7; ++step) {
      if (options.DueAfter(step, 7)) {
        steps.push_back(step);
      }
    }
    return steps;
  };
  using Steps = std::vector<int64_t>;
  EXPECT_EQ(due({}), Steps{});
  EXPECT_EQ(due({.every_steps = 3, .at_start = true}), Steps{}) << "of nothing";
  EXPECT_EQ(due({.path = "x"}), Steps{7});
  EXPECT_EQ(due({.fraction = 0.1, .every_steps = 3}), (Steps{3, 6, 7}));
  EXPECT_EQ(due({.path = "x", .every_steps = 7, .at_start = true}), (Steps{0, 7}));
}

}  // namespace
}  // namespace shoal::plan
