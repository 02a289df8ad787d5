// Every mistake of the table ends in its exit code and in one line that names file, line or key and
// says what to do.
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/testing/command_line.h"
#include "core/base/file.h"
#include "gtest/gtest.h"
#include "tests/mistakes/mistake.h"
#include "tests/support/program.h"

namespace shoal::testing {

namespace fs = std::filesystem;

std::string Job(const std::string& more) {
  return "model: {shared}/model\n"
         "data:\n"
         "  train: {shared}/train.jsonl\n"
         "  microbatch_tokens: 2048\n"
         "checkpoint:\n"
         "  directory: out\n" +
         more;
}

Mistake InJob(const std::string& name, const std::string& more, std::vector<std::string> says) {
  return {.name = name,
          .files = {{"job.yaml", Job(more)}},
          .command = "plan {at}/job.yaml",
          .says = std::move(says)};
}

Mistake InSet(const std::string& name, const std::string& set, std::vector<std::string> says) {
  return {.name = name,
          .files = {{"job.yaml", Job()}},
          .command = "plan {at}/job.yaml --set " + set,
          .says = std::move(says)};
}

void CopyModel(const Place& place) {
  fs::copy(place.shared + "/model", place.at + "/model", fs::copy_options::recursive);
}

void Edit(const Place& place, const std::string& file, const std::string& from,
          const std::string& to) {
  const std::string path = place.at + "/model/" + file;
  const std::string text = ReadFile(path).value();
  EXPECT_NE(text.find(from), std::string::npos) << path << " lacks " << from;
  ASSERT_TRUE(WriteFileAtomically(path, absl::StrReplaceAll(text, {{from, to}})).ok());
}

void PrintTo(const Mistake& mistake, std::ostream* out) { *out << "shoal " << mistake.command; }

namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);  // for a row that runs the program

std::string Expand(const std::string& text, const Place& place) {
  return absl::StrReplaceAll(
      text, {{"{at}", place.at}, {"{shared}", place.shared}, {"{coordinator}", place.coordinator}});
}

std::vector<Mistake> All() {
  std::vector<Mistake> all;
  for (std::vector<Mistake> part :
       {JobMistakes(), DataMistakes(), ModelMistakes(), RunMistakes(), CommandMistakes()}) {
    std::ranges::move(part, std::back_inserter(all));
  }
  return all;
}

class MistakesTest : public ::testing::TestWithParam<Mistake> {
 protected:
  static void SetUpTestSuite() {
    unsetenv("SHOAL_TOKEN");
    root_ = fs::path(FreshDirectory("mistakes")).lexically_normal().string();
    const std::string shared = root_ + "/shared";
    ASSERT_TRUE(CreateDirectories(shared).ok());
    ASSERT_TRUE(WriteFileAtomically(shared + "/token", "a-token-of-32-characters-or-more\n").ok());
    const std::string steps[] = {
        "data synth --samples 50 --output {shared}/train.jsonl",
        "data tokenizer {shared}/train.jsonl --vocabulary 300 --output {shared}/tokenizer",
        "model init --shape tiny --tokenizer {shared}/tokenizer --output {shared}/model"};
    const Place place{.at = shared, .shared = shared, .coordinator = ""};
    for (const std::string& step : steps) {
      const cli::Outcome made = cli::Shoal(absl::StrSplit(Expand(step, place), ' '));
      ASSERT_EQ(made.code, 0) << made.err;
    }
    // A finished run of one step.
    ASSERT_TRUE(
        WriteFileAtomically(shared + "/run.yaml", Expand(Job("train: {steps: 1}\n"), place)).ok());
    Program train({BinDirectory() + "/shoal", "train", shared + "/run.yaml"});
    const ProgramResult trained = train.Wait(kPatience);
    ASSERT_EQ(trained.exit_code, 0) << trained.errors;
  }
  static void TearDownTestSuite() { fs::remove_all(root_); }

  void SetUp() override {
    place_ = {.at = root_ + "/" + GetParam().name, .shared = root_ + "/shared", .coordinator = ""};
    ASSERT_TRUE(CreateDirectories(place_.at).ok());
    for (const auto& [name, text] : GetParam().files) {
      const std::string path = place_.at + "/" + name;
      ASSERT_TRUE(WriteFileAtomically(path, Expand(text, place_)).ok());
    }
    if (GetParam().make) {
      made_ = GetParam().make(place_);
    }
  }

  cli::Outcome Run() const {
    std::vector<std::string> arguments =
        absl::StrSplit(Expand(GetParam().command, place_), ' ', absl::SkipEmpty());
    if (!GetParam().program) {
      return cli::Shoal(arguments);
    }
    arguments.insert(arguments.begin(), BinDirectory() + "/shoal");
    Program program(arguments);
    const ProgramResult result = program.Wait(kPatience);
    return {result.exit_code, result.output, result.errors};
  }

  // The lines of `text` that begin as one of the row's kind does.
  std::vector<std::string> LinesOfInterest(const std::string& text) const {
    const bool warning = GetParam().kind == Mistake::Kind::kWarning;
    std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
    std::erase_if(lines, [&](const std::string& line) {
      return warning ? line.find("warning: ") == std::string::npos
                     : !line.starts_with("shoal: error: ");
    });
    return lines;
  }

  Place place_;
  std::shared_ptr<void> made_;

 private:
  inline static std::string root_;
};

TEST_P(MistakesTest, EndsInItsCodeAndOneLineThatHelps) {
  const Mistake& mistake = GetParam();
  const cli::Outcome outcome = Run();
  made_.reset();
  EXPECT_EQ(outcome.code, mistake.code) << outcome.err;
  if (!mistake.never.empty()) {
    EXPECT_EQ(outcome.err.find(mistake.never), std::string::npos) << outcome.err;
  }
  if (mistake.kind == Mistake::Kind::kNoMistake) {
    EXPECT_EQ(outcome.err, "");
    return;
  }
  if (mistake.kind == Mistake::Kind::kOneLine) {
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  }
  const std::vector<std::string> lines = LinesOfInterest(outcome.err);
  ASSERT_EQ(lines.size(), 1U) << outcome.err;
  ASSERT_FALSE(mistake.says.empty());
  size_t from = 0;
  for (const std::string& part : mistake.says) {
    const std::string wanted = Expand(part, place_);
    const size_t found = lines.front().find(wanted, from);
    ASSERT_NE(found, std::string::npos) << lines.front() << "\nlacks " << wanted;
    from = found + wanted.size();
  }
}

INSTANTIATE_TEST_SUITE_P(Table, MistakesTest, ::testing::ValuesIn(All()),
                         [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace shoal::testing
