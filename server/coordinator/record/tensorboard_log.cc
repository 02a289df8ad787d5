#include "server/coordinator/record/tensorboard_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/base/status.h"

namespace shoal::server {
namespace {

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  constexpr uint32_t kReversedCastagnoli = 0x82F63B78;
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReversedCastagnoli : 0);
    }
    table[i] = crc;
  }
  return table;
}();

// CRC-32C, rotated and shifted as TFRecord masks it.
uint32_t MaskedCrc(std::string_view data) {
  uint32_t crc = ~0U;
  for (const char byte : data) {
    crc = kCrcTable[(crc ^ static_cast<uint8_t>(byte)) & 0xFF] ^ (crc >> 8);
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8;
}

template <typename T>
std::string BytesOf(T value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

}  // namespace

std::string TensorBoardRecord(const std::string& data) {
  const std::string length = BytesOf(static_cast<uint64_t>(data.size()));
  return length + BytesOf(MaskedCrc(length)) + data + BytesOf(MaskedCrc(data));
}

absl::StatusOr<TensorBoardLog> TensorBoardLog::Open(const std::string& folder, int64_t step,
                                                    double time) {
  const std::string path =
      fmt::format("{}/events.out.tfevents.{:.0f}.{}.shoal", folder, time, getpid());
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    const int error_number = errno;
    return ErrnoToStatus(error_number, fmt::format("cannot open {}", path));
  }
  TensorBoardLog log(path, std::move(fd));
  tensorboard::Event event;
  event.set_wall_time(time);
  event.set_file_version("brain.Event:2");
  SHOAL_RETURN_IF_ERROR(log.Write(event));
  event.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  event.set_step(step);
  SHOAL_RETURN_IF_ERROR(log.Write(event));
  return log;
}

absl::Status TensorBoardLog::Append(int64_t step, double time,
                                    const std::vector<std::pair<std::string, double>>& scalars) {
  tensorboard::Event event;
  event.set_wall_time(time);
  event.set_step(step);
  for (const auto& [tag, scalar] : scalars) {
    auto* value = event.mutable_summary()->add_value();
    value->set_tag(tag);
    value->set_simple_value(static_cast<float>(scalar));
  }
  return Write(event);
}

absl::Status TensorBoardLog::Write(const tensorboard::Event& event) {
  const std::string record = TensorBoardRecord(event.SerializeAsString());
  const ssize_t written = write(fd_.get(), record.data(), record.size());
  if (written != static_cast<ssize_t>(record.size())) {
    const int error_number = written < 0 ? errno : ENOSPC;
    return ErrnoToStatus(error_number, fmt::format("cannot write {}", path_));
  }
  return absl::OkStatus();
}

}  // namespace shoal::server
