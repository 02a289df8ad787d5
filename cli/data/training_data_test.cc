#include "cli/data/training_data.h"

#include <filesystem>

#include "cli/testing/command_line.h"
#include "core/base/file.h"
#include "core/base/json/json.h"
#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

using ::testing::HasSubstr;

constexpr const char* kOwn =
    "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.content }}{{ '<|im_end|>' }}{% endfor %}";

class TrainingDataTest : public TinyModelTest {
 protected:
  void SetUp() override {
    TinyModelTest::SetUp();
    cache_ = folder_ + "/cache";
    job_.model = model();
    job_.data.train = train_;
  }
  // As a run does it that takes over.
  TrainingData Begin() {
    TrainingData data = PrepareTrainingData(job_, cache_, {}).value();
    EXPECT_TRUE(worker::WriteRendering(cache_, data.rendering).ok());
    return data;
  }
  std::string Resumed(bool accept_changes = false) {
    const auto data =
        PrepareTrainingData(job_, cache_, {.resumes = true, .accept_changes = accept_changes});
    return data.ok() ? "resumed" : std::string(Message(data.status()));
  }

  plan::Job job_;
  std::string cache_;
};

TEST_F(TrainingDataTest, TheDayIsWhatTheJobSays) {
  Write("model/chat_template.jinja", kOwn);
  const TrainingData today = Begin();
  EXPECT_EQ(today.date.size(), 10u);
  job_.data.date = "2001-02-03";
  const TrainingData then = Begin();
  EXPECT_EQ(then.date, "2001-02-03");
  EXPECT_NE(then.train.path, today.train.path);
  job_.data.date = today.date;
  EXPECT_EQ(Begin().train.path, today.train.path);
  job_.data.date = "";
  Write("model/chat_template.jinja", std::string(kOwn).substr(std::string(kOwn).find("{% for")));
  EXPECT_EQ(Begin().date, "") << "nobody asks";
}

TEST_F(TrainingDataTest, OnlyTheRunThatTakesOverKeepsWhatItsSamplesWereMadeWith) {
  ASSERT_OK(PrepareTrainingData(job_, cache_, {}).status());
  EXPECT_FALSE(worker::ReadRendering(cache_).value().has_value());
}

TEST_F(TrainingDataTest, AnotherTemplateIsRefusedUnlessAccepted) {
  Write("model/chat_template.jinja", kOwn);
  Begin();
  EXPECT_EQ(Resumed(), "resumed");
  Write("model/chat_template.jinja", std::string(kOwn) + "{# new #}");
  EXPECT_EQ(Resumed(), "--resume would go on with other tokens: the chat template (" + model() +
                           "/chat_template.jinja) is another than the run began with; take that "
                           "back, or say --accept-changes");
  EXPECT_EQ(Resumed(true), "resumed");
}

TEST_F(TrainingDataTest, AnotherTokenizerIsRefusedUnlessAccepted) {
  Begin();
  const std::string tokenizer = model() + "/tokenizer.json";
  ASSERT_OK(WriteFileAtomically(tokenizer, *ReadFile(tokenizer) + " \n"));
  EXPECT_EQ(Resumed(), "--resume would go on with other tokens: " + tokenizer +
                           " is another than the run began with; take that back, or say "
                           "--accept-changes");
  EXPECT_EQ(Resumed(true), "resumed");
}

TEST_F(TrainingDataTest, AnotherEndOfDocumentsIsRefusedUnlessAccepted) {
  job_.train.objective = plan::Objective::kPretrain;
  job_.data.train = Write("data.jsonl", R"({"text":"Once upon a time"})");
  Begin();
  EXPECT_EQ(Resumed(), "resumed");
  const std::string config = model() + "/config.json";
  Json json = ReadJson(config).value();
  json["eos_token_id"] = json["eos_token_id"].get<int64_t>() + 1;
  ASSERT_OK(WriteFileAtomically(config, json.dump()));
  EXPECT_EQ(Resumed(),
            "--resume would go on with other tokens: what documents begin or end with "
            "(eos_token_id of " +
                model() +
                ") is another than the run began with; take that back, or say "
                "--accept-changes");
  EXPECT_EQ(Resumed(true), "resumed");
}

// As a release left it that had no data.date, so that no checkpoint says the day.
TEST_F(TrainingDataTest, ARunOfAReleaseBeforeIsToldItsDayAgain) {
  Write("model/chat_template.jinja", kOwn);
  job_.data.date = "2001-02-03";
  const TrainingData then = Begin();
  job_.data.date = "";
  ASSERT_OK(WriteFileAtomically(
      worker::RenderingFile(cache_),
      Json{{"template", then.rendering.chat_template}, {"day", "2001-02-03"}}.dump()));
  for (const bool accept : {false, true}) {
    const auto resumed =
        PrepareTrainingData(job_, cache_, {.resumes = true, .accept_changes = accept});
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    EXPECT_EQ(resumed->date, "2001-02-03");
    EXPECT_EQ(resumed->train.path, then.train.path);
    ASSERT_OK(worker::WriteRendering(cache_, resumed->rendering));
    EXPECT_EQ(worker::ReadRendering(cache_).value()->day, "2001-02-03")
        << "it may be resumed again before its first checkpoint";
  }
  job_.data.date = "2001-02-04";
  EXPECT_EQ(PrepareTrainingData(job_, cache_, {.resumes = true})->date, "2001-02-04");
  job_.data.date = "";
  EXPECT_NE(PrepareTrainingData(job_, cache_, {})->date, "2001-02-03") << "another run";
}

TEST_F(TrainingDataTest, WeightsThatARunBeganWithoutAreRefusedUnlessAccepted) {
  const auto with = [&](const std::string& weight) {
    job_.data.train =
        Write("data.jsonl", R"({"prompt":"1 + 1?","completion":"2")" + weight + "}\n");
  };
  with(R"(,"weight":0.5)");
  EXPECT_THAT(worker::Describe(Begin().train.summary), HasSubstr("; 1 with weights"));
  EXPECT_EQ(Resumed(), "resumed");
  with("");
  EXPECT_THAT(Resumed(), HasSubstr("the run began with weights of samples, and they have none"));
  const TrainingData without = Begin();
  EXPECT_EQ(Resumed(), "resumed");
  with(R"(,"weight":0.5)");
  EXPECT_THAT(Resumed(), HasSubstr("--resume would go on with other weights: the run began "
                                   "without weights of samples, and some have one"));
  EXPECT_EQ(Resumed(true), "resumed");
  worker::Rendering unknown = without.rendering;
  unknown.weights.reset();
  ASSERT_OK(worker::WriteRendering(cache_, unknown));
  EXPECT_EQ(Resumed(), "resumed") << "a release before may have learnt with them";
  std::filesystem::remove(worker::RenderingFile(cache_));
  EXPECT_EQ(Resumed(), "resumed") << "nothing was kept";
}

}  // namespace
}  // namespace shoal::cli
