#include "core/model/huggingface/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "core/model/huggingface/hf_model.h"

namespace shoal::formats {
namespace {

class ModelFilesTest : public ::testing::Test {
 protected:
  ModelFilesTest() {
    plan::ModelSpec spec = *plan::NamedShape("tiny");
    spec.vocabulary = 40'000;  // an embedding of several MiB
    EXPECT_THAT(InitHfModel(folder_.path(), spec, /*seed=*/1, {.max_file_bytes = 4 * kMiB}),
                IsOk());
    files_ = ReadFiles(folder_.path()).value();
  }
  // Of byte `at` of a file; from its end where it is negative.
  void ChangeByte(const std::string& name, int64_t at) {
    const std::string path = folder_ / name;
    std::string content = ReadFile(path).value();
    content[static_cast<size_t>(at < 0 ? std::ssize(content) + at : at)] ^= 1;
    EXPECT_THAT(WriteFileAtomically(path, content), IsOk());
  }

  const TemporaryFolder folder_;
  std::vector<ModelFile> files_;
};

TEST_F(ModelFilesTest, TellWhatIsTheSame) {
  ASSERT_GE(files_.size(), 2U);
  EXPECT_THAT(CheckFiles(folder_.path(), files_), IsOk());
  for (const ModelFile& file : files_) {
    EXPECT_EQ(file.bytes, std::filesystem::file_size(folder_ / file.name));
  }
  const TemporaryFolder copy;
  std::filesystem::copy(folder_.path(), copy.path());
  EXPECT_EQ(ReadFiles(copy.path()).value(), files_);
  std::filesystem::remove(copy / "model.safetensors.index.json");
  EXPECT_THAT(CheckFiles(copy.path(), files_), IsOk());
}

TEST_F(ModelFilesTest, NameTheOneThatIsAnother) {
  ASSERT_GT(std::ranges::max(files_, {}, &ModelFile::bytes).bytes, 2 * kMiB);
  for (const ModelFile& file : files_) {
    for (const int64_t at : {int64_t{1000}, -std::min(kMiB, file.bytes), int64_t{-1}}) {
      ChangeByte(file.name, at);
      const absl::Status other = CheckFiles(folder_.path(), files_);
      EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_REFUSED(other,
                     file.name + " is another file than the job's of that name (of the same size)");
      ChangeByte(file.name, at);
      EXPECT_THAT(CheckFiles(folder_.path(), files_), IsOk());
    }
  }
  const ModelFile& last = files_.back();
  std::ofstream(folder_ / last.name, std::ios::app) << "more";
  EXPECT_REFUSED(CheckFiles(folder_.path(), files_),
                 fmt::format("{} bytes, the job's has {}", last.bytes + 4, last.bytes));
  std::filesystem::remove(folder_ / last.name);
  EXPECT_REFUSED(CheckFiles(folder_.path(), files_), last.name + ": No such file or directory");
}

TEST_F(ModelFilesTest, OpenNoOthersBesideThem) {
  EXPECT_THAT(OpenSame(folder_.path(), files_).status(), IsOk());
  EXPECT_REFUSED(OpenSame(folder_.path(), {}).status(), "the job's model from no file");
  // Whoever reads the model takes this one.
  std::filesystem::copy_file(folder_ / files_[0].name, folder_ / "model.safetensors");
  EXPECT_THAT(CheckFiles(folder_.path(), files_), IsOk());
  EXPECT_FALSE(OpenSame(folder_.path(), files_).ok());
}

// Whoever has opened them goes on with those.
TEST_F(ModelFilesTest, OthersInTheirPlaceAreNotRead) {
  const auto model = OpenSame(folder_.path(), files_).value();
  const auto read = [&model] {
    std::vector<float> weights;
    for (const plan::UnitSpec& unit : plan::BuildUnits(model->spec())) {
      const size_t at = weights.size();
      weights.resize(at + static_cast<size_t>(unit.count));
      EXPECT_THAT(model->ReadUnit(unit.index, 0, std::span(weights).subspan(at)), IsOk());
    }
    return weights;
  };
  const std::vector<float> before = read();
  for (const ModelFile& file : files_) {
    ChangeByte(file.name, -1);
  }
  EXPECT_TRUE(read() == before);
  EXPECT_FALSE(OpenSame(folder_.path(), files_).ok());
}

TEST_F(ModelFilesTest, StayInTheirFolder) {
  for (const std::string name : {"../model.safetensors", "..", "", "/etc/passwd"}) {
    files_[0].name = name;
    EXPECT_REFUSED(CheckFiles(folder_.path(), files_), "is not the name of a file of a model");
  }
}

}  // namespace
}  // namespace shoal::formats
