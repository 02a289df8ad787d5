#include "core/model/huggingface/safetensors.h"

#include <cstring>

#include "core/base/file.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"

namespace shoal::formats {
namespace {

std::string FileOf(const std::string& header, size_t data_bytes) {
  const uint64_t size = header.size();
  std::string file(sizeof(size), '\0');
  std::memcpy(file.data(), &size, sizeof(size));
  return file + header + std::string(data_bytes, '\1');
}

absl::Status ParseHeader(const std::string& file) {
  std::map<std::string, std::string> metadata;
  return ParseSafetensors(std::as_bytes(std::span(file)), std::ssize(file), &metadata).status();
}

TEST(Safetensors, ReadsBackWhatWasWritten) {
  const TemporaryFolder folder;
  const std::vector<SafetensorsTensor> tensors = {{"a", DType::kF32, {2, 3}},
                                                  {"b \"quoted\" \xC3\xA9", DType::kBF16, {5}},
                                                  {"none", DType::kF16, {0, 7}},
                                                  {"scalar", DType::kF32, {}}};
  std::string data(24 + 10 + 0 + 4, '\0');
  Random random(1);
  for (char& c : data) {
    c = static_cast<char>(random.Below(256));
  }
  auto writer = SafetensorsWriter::Create(folder / "m", tensors, {{"format", "pt"}});
  ASSERT_OK(writer.status());
  ASSERT_OK((*writer)->Append(std::as_bytes(std::span(data).first(7))));
  ASSERT_OK((*writer)->Append(std::as_bytes(std::span(data).subspan(7))));
  ASSERT_OK((*writer)->Finish());

  const auto file = SafetensorsFile::Open(folder / "m");
  ASSERT_OK(file.status());
  EXPECT_EQ((*file)->metadata().at("format"), "pt");
  int64_t offset = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const SafetensorsEntry& entry = (*file)->tensors().at(tensor.name);
    EXPECT_EQ(entry.dtype, tensor.dtype);
    EXPECT_EQ(entry.shape, tensor.shape);
    std::string read(static_cast<size_t>(entry.bytes), '?');
    ASSERT_OK((*file)->Read(entry, 0, std::as_writable_bytes(std::span(read))));
    EXPECT_EQ(read, data.substr(static_cast<size_t>(offset), read.size()));
    offset += entry.bytes;
  }
  EXPECT_EQ(offset, std::ssize(data));
}

TEST(Safetensors, TheWriterHoldsCallersToWhatTheyAnnounced) {
  const TemporaryFolder folder;
  const std::string data(8, 'x');
  {
    auto writer = SafetensorsWriter::Create(folder / "m", {{"a", DType::kF32, {2}}}, {});
    ASSERT_OK(writer.status());
    EXPECT_REFUSED((*writer)->Finish(), "8 bytes of the announced tensors");
    ASSERT_OK((*writer)->Append(std::as_bytes(std::span(data))));
    EXPECT_REFUSED((*writer)->Append(std::as_bytes(std::span(data))), "more data");
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_REFUSED(SafetensorsWriter::Create(folder / "m", {{"a"}, {"a"}}, {}).status(), "taken");
  EXPECT_REFUSED(SafetensorsWriter::Create(folder / "m", {{"a", DType::kF32, {-1}}}, {}).status(),
                 "shape");
}

TEST(Safetensors, RefusesHostileHeaders) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  ASSERT_OK(ParseHeader(FileOf(good, 8)));
  ASSERT_OK(ParseHeader(FileOf(good + "   ", 8)));
  EXPECT_REFUSED(ParseHeader(""), "not a safetensors file");
  EXPECT_REFUSED(ParseHeader(std::string(8, '\xFF')), "a header of 18446744073709551615 bytes");
  EXPECT_REFUSED(ParseHeader(FileOf(good, 8).substr(0, 20)), "truncated");
  EXPECT_REFUSED(ParseHeader("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
                 "git lfs pull");
  EXPECT_REFUSED(ParseHeader(FileOf(good, 7)), "truncated");
  EXPECT_REFUSED(ParseHeader(FileOf(good, 9)), "1 bytes of data belong to no tensor");
  EXPECT_REFUSED(ParseHeader(FileOf("[]", 0)), "the header is array, expected an object");
  EXPECT_REFUSED(ParseHeader(FileOf("{", 0)), "the header: not valid JSON");
  EXPECT_REFUSED(ParseHeader(FileOf(std::string(100000, '['), 0)), "nested more than 64 deep");
  EXPECT_REFUSED(ParseHeader(FileOf(R"({"__metadata__":{"a":1}})", 0)), "__metadata__");

  const auto tensor = [](const std::string& fields) { return FileOf("{\"w\":" + fields + "}", 8); };
  EXPECT_REFUSED(ParseHeader(tensor("1")), "tensor 'w'");
  EXPECT_REFUSED(ParseHeader(tensor(R"({"dtype":"I64","shape":[1],"data_offsets":[0,8]})")),
                 "tensor 'w': 'I64'");
  EXPECT_REFUSED(ParseHeader(tensor(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})")),
                 "shape [3] of F32");
  EXPECT_REFUSED(ParseHeader(tensor(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})")),
                 "tensor 'w'");
  EXPECT_REFUSED(ParseHeader(tensor(R"({"dtype":"F32","shape":"2","data_offsets":[0,8]})")),
                 "tensor 'w'");
  EXPECT_REFUSED(
      ParseHeader(tensor(R"({"dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8]})")),
      "tensor 'w'");
  EXPECT_REFUSED(ParseHeader(tensor(
                     R"({"dtype":"F32","shape":[2147483648,4294967296,2],"data_offsets":[0,8]})")),
                 "tensor 'w'");
  EXPECT_REFUSED(ParseHeader(tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})")),
                 "outside");
  EXPECT_REFUSED(ParseHeader(tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[4,12]})")),
                 "outside");
  EXPECT_REFUSED(ParseHeader(tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})")),
                 "[begin, end]");
  EXPECT_REFUSED(ParseHeader(tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})")),
                 "[begin, end]");
}

TEST(Safetensors, RefusesOverlapGapAndDuplicate) {
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)";
  EXPECT_REFUSED(ParseHeader(FileOf(
                     "{" + a + R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12)),
                 "'b' starts at byte 4 of the data, inside");
  EXPECT_REFUSED(
      ParseHeader(FileOf("{" + a + R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8)),
      "inside");
  EXPECT_REFUSED(ParseHeader(FileOf(
                     "{" + a + R"("b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})", 16)),
                 "gap");
  EXPECT_REFUSED(ParseHeader(FileOf(
                     "{" + a + R"("a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})", 12)),
                 "'a' appears twice");
}

TEST(Safetensors, OpenNamesTheFile) {
  const TemporaryFolder folder;
  EXPECT_REFUSED(SafetensorsFile::Open(folder / "none").status(), folder / "none");
  ASSERT_OK(WriteFileAtomically(folder / "bad", "hello, this is text"));
  EXPECT_REFUSED(SafetensorsFile::Open(folder / "bad").status(), folder / "bad");
}

}  // namespace
}  // namespace shoal::formats
