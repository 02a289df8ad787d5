#include "core/data/unpacked_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/file.h"
#include "core/base/status.h"

namespace shoal::worker {
namespace {

// How a frame begins, or one that is passed over.
bool IsZstd(std::string_view magic) {
  return magic == "\x28\xb5\x2f\xfd" ||
         ((magic[0] & 0xf0) == 0x50 && magic.substr(1) == "\x2a\x4d\x18");
}

absl::Status CutShort(const std::string& path) {
  return DataLoss("{}: what is packed has no end; is the file cut short?", path);
}

// zlib reads what is not packed as it is.
class GzipOrPlain final : public UnpackedFile {
 public:
  GzipOrPlain(const std::string& path, UniqueFd fd)
      : path_(path), file_(gzdopen(fd.Release(), "rb"), gzclose_r) {
    gzbuffer(file_.get(), 1U << 17);
  }
  absl::StatusOr<size_t> Read(char* to, size_t most) override {
    const int got = gzread(file_.get(), to, static_cast<unsigned>(std::min<size_t>(most, INT_MAX)));
    int error = Z_OK;
    const char* message = gzerror(file_.get(), &error);
    if (error == Z_ERRNO) {
      return ErrnoToStatus(errno, fmt::format("cannot read {}", path_));
    }
    if (error == Z_BUF_ERROR) {
      return CutShort(path_);
    }
    if (got < 0 || error != Z_OK) {
      return DataLoss("{}: gzip: {}", path_, message);
    }
    return static_cast<size_t>(got);
  }
  int64_t bytes_read() const override { return std::max<int64_t>(0, gzoffset(file_.get())); }

 private:
  const std::string path_;
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

class Zstd final : public UnpackedFile {
 public:
  Zstd(const std::string& path, UniqueFd fd)
      : path_(path), fd_(std::move(fd)), stream_(ZSTD_createDStream(), ZSTD_freeDStream) {}
  absl::StatusOr<size_t> Read(char* to, size_t most) override {
    ZSTD_outBuffer out = {.dst = to, .size = most, .pos = 0};
    while (out.pos == 0) {
      if (in_.pos == in_.size) {
        SHOAL_ASSIGN_OR_RETURN(const bool more, Fill());
        if (!more) {
          return wants_ == 0 ? absl::StatusOr<size_t>(0) : CutShort(path_);
        }
      }
      wants_ = ZSTD_decompressStream(stream_.get(), &out, &in_);
      if (ZSTD_isError(wants_) != 0) {
        return DataLoss("{}: zstd: {}", path_, ZSTD_getErrorName(wants_));
      }
    }
    return out.pos;
  }
  int64_t bytes_read() const override { return bytes_read_; }

 private:
  absl::StatusOr<bool> Fill() {
    ssize_t got = 0;
    do {
      got = read(fd_.get(), block_.data(), block_.size());
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
      return ErrnoToStatus(errno, fmt::format("cannot read {}", path_));
    }
    bytes_read_ += got;
    in_ = {.src = block_.data(), .size = static_cast<size_t>(got), .pos = 0};
    return got > 0;
  }

  const std::string path_;
  const UniqueFd fd_;
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_;
  std::vector<char> block_ = std::vector<char>(ZSTD_DStreamInSize());
  ZSTD_inBuffer in_ = {};
  size_t wants_ = 0;  // 0 where a frame has ended
  int64_t bytes_read_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<UnpackedFile>> UnpackedFile::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) {
    return ErrnoToStatus(errno, fmt::format("cannot open {}", path));
  }
  if (S_ISDIR(info.st_mode)) {
    return InvalidArgument("{} is a folder, a file was expected", path);
  }
  char magic[4] = {};
  // What cannot be read from a place of its choice (a pipe) is not packed by zstd.
  const bool zstd = pread(fd.get(), magic, sizeof(magic), 0) == sizeof(magic) &&
                    IsZstd(std::string_view(magic, sizeof(magic)));
  return zstd ? std::unique_ptr<UnpackedFile>(std::make_unique<Zstd>(path, std::move(fd)))
              : std::make_unique<GzipOrPlain>(path, std::move(fd));
}

}  // namespace shoal::worker
