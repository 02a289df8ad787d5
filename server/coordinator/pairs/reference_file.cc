#include "server/coordinator/pairs/reference_file.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>

#include "core/base/file.h"
#include "core/base/status.h"

namespace shoal::server {
namespace {

namespace fs = std::filesystem;

constexpr std::array<char, 8> kMagic = {'S', 'H', 'O', 'A', 'L', 'R', 'E', 'F'};
constexpr uint32_t kVersion = 1;
// Part of every name: raise it when the same files give other references.
constexpr int kNameVersion = 1;
constexpr int64_t kBlock = int64_t{1} << 16;
// Of a model's weights: fine-tuning changes them all.
constexpr int64_t kSampledBlocks = 64;

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t unused = 0;
  uint64_t count = 0;
  uint64_t checksum = 0;  // XXH3-64 of the numbers, seeded with that of the fields above
};
static_assert(sizeof(Header) == 32);

uint64_t ChecksumOf(const Header& header, std::span<const double> numbers) {
  return XXH3_64bits_withSeed(numbers.data(), numbers.size_bytes(),
                              XXH3_64bits(&header, offsetof(Header, checksum)));
}

// Of the whole file, or of `blocks` of it.
absl::StatusOr<uint64_t> HashOf(const std::string& path, int64_t blocks, uint64_t seed) {
  SHOAL_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  const int64_t all = (file.size() + kBlock - 1) / kBlock;
  const int64_t count = blocks > 0 ? std::min(blocks, all) : all;
  std::vector<std::byte> block(static_cast<size_t>(kBlock));
  uint64_t hash = seed ^ static_cast<uint64_t>(file.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = i * all / count * kBlock;
    const auto part =
        std::span(block).first(static_cast<size_t>(std::min(kBlock, file.size() - begin)));
    SHOAL_RETURN_IF_ERROR(file.Read(begin, part));
    hash = XXH3_64bits_withSeed(part.data(), part.size(), hash);
  }
  return hash;
}

// Its shape and weights, in the order of names.
absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& model) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator it(model, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors" || it->path().filename() == "config.json" ||
        it->path().filename() == "adapter_config.json") {
      files.push_back(it->path().string());
    }
  }
  if (error) {
    return ErrnoToStatus(error.value(), "cannot list " + model);
  }
  std::ranges::sort(files);
  return files;
}

}  // namespace

absl::StatusOr<std::string> ReferencePath(const ReferenceSource& source) {
  const std::string numerics = fmt::format("{}|{}|{}", source.compute, source.wire, source.longest);
  uint64_t hash = XXH3_64bits_withSeed(numerics.data(), numerics.size(), kNameVersion);
  for (const std::string& file : {source.token_file, source.validation_file}) {
    if (!file.empty()) {
      SHOAL_ASSIGN_OR_RETURN(hash, HashOf(file, 0, hash));
    }
  }
  SHOAL_ASSIGN_OR_RETURN(const std::vector<std::string> model, FilesOf(source.model));
  for (const std::string& file : model) {
    SHOAL_ASSIGN_OR_RETURN(hash, HashOf(file, kSampledBlocks, hash));
  }
  if (!source.adapter.empty()) {
    SHOAL_ASSIGN_OR_RETURN(const std::vector<std::string> adapter, FilesOf(source.adapter));
    for (const std::string& file : adapter) {
      SHOAL_ASSIGN_OR_RETURN(hash, HashOf(file, 0, hash));
    }
  }
  return (fs::path(source.token_file).parent_path() / fmt::format("reference-{:016x}.f64", hash))
      .string();
}

absl::Status WriteReferences(const std::string& path, std::span<const double> references) {
  Header header = {.count = references.size()};
  header.checksum = ChecksumOf(header, references);
  std::string bytes(sizeof(header) + references.size_bytes(), '\0');
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), references.data(), references.size_bytes());
  return Annotate(WriteFileAtomically(path, bytes), "keep what pairs are compared with");
}

absl::StatusOr<std::vector<double>> ReadReferences(const std::string& path) {
  SHOAL_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  Header header;
  const auto damaged = [&path] { return DataLoss("{} is damaged", path); };
  if (file.size() < std::ssize(std::as_bytes(std::span(&header, 1)))) {
    return damaged();
  }
  SHOAL_RETURN_IF_ERROR(file.Read(0, std::as_writable_bytes(std::span(&header, 1))));
  const int64_t numbers = (file.size() - static_cast<int64_t>(sizeof(header))) / 8;
  if (header.magic != kMagic || header.version != kVersion ||
      header.count != static_cast<uint64_t>(numbers)) {
    return damaged();
  }
  std::vector<double> references(header.count);
  SHOAL_RETURN_IF_ERROR(file.Read(sizeof(header), std::as_writable_bytes(std::span(references))));
  return ChecksumOf(header, references) == header.checksum
             ? absl::StatusOr<std::vector<double>>(std::move(references))
             : damaged();
}

}  // namespace shoal::server
