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
  const ModelFile file = *std::ranges::max_element(files_, {}, &ModelFile::bytes);
  ASSERT_GT(file.bytes, 2 * kMiB);
  const std::string& name = file.name;
  for (const int64_t at : {int64_t{1000}, -kMiB, int64_t{-1}}) {
    ChangeByte(name, at);
    const absl::Status other = CheckFiles(folder_.path(), files_);
    EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_REFUSED(other, name + " is another file than the job's of that name (of the same size)");
    ChangeByte(name, at);
    EXPECT_THAT(CheckFiles(folder_.path(), files_), IsOk());
  }
  std::ofstream(folder_ / name, std::ios::app) << "more";
  EXPECT_REFUSED(CheckFiles(folder_.path(), files_),
                 fmt::format("{} bytes, the job's has {}", file.bytes + 4, file.bytes));
  std::filesystem::remove(folder_ / name);
  EXPECT_REFUSED(CheckFiles(folder_.path(), files_), name + ": No such file or directory");
}

TEST_F(ModelFilesTest, OpenNoOthersBesideThem) {
  EXPECT_THAT(OpenSame(folder_.path(), files_).status(), IsOk());
  EXPECT_REFUSED(OpenSame(folder_.path(), {}).status(), "the job's model from no file");
  // Whoever reads the model takes this one.
  std::filesystem::copy_file(folder_ / files_[0].name, folder_ / "model.safetensors");
  EXPECT_THAT(CheckFiles(folder_.path(), files_), IsOk());
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
