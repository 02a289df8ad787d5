#include "core/base/trace/trace_file.h"

#include <cmath>
#include <span>

#include "core/base/check.h"
#include "core/base/status.h"
#include "nlohmann/json.hpp"

namespace shoal::formats {
namespace {

using nlohmann::json;

// Names may come from the network: replaces bytes that are not UTF-8.
std::string Quote(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string ToJson(const TraceValue& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) {
    return std::to_string(*integer);
  }
  if (const auto* number = std::get_if<double>(&value)) {
    return std::isfinite(*number) ? fmt::format("{}", *number) : "null";
  }
  return Quote(std::get<std::string_view>(value));
}

std::string ToJson(TraceArguments arguments) {
  std::string text = "{";
  for (const auto& [name, value] : arguments) {
    if (const auto* said = std::get_if<std::string_view>(&value);
        said != nullptr && said->empty()) {
      continue;
    }
    text += fmt::format("{}{}:{}", text.size() > 1 ? "," : "", Quote(name), ToJson(value));
  }
  return text + "}";
}

// The format uses microseconds; three decimals keep every nanosecond.
std::string Microseconds(int64_t nanoseconds) {
  const auto size =
      nanoseconds < 0 ? 0 - static_cast<uint64_t>(nanoseconds) : static_cast<uint64_t>(nanoseconds);
  return fmt::format("{}{}.{:03}", nanoseconds < 0 ? "-" : "", size / 1000, size % 1000);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Create(const std::string& path,
                                                             TraceArguments about) {
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<StreamedFile> file, StreamedFile::Create(path));
  std::unique_ptr<TraceFile> trace(new TraceFile(std::move(file)));
  if (path.ends_with(".gz")) {
    trace->gzip_ = std::make_unique<Gzip>();
  }
  trace->Append(fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\"traceEvents\":[",
                            ToJson(about)));
  return trace;
}

void TraceFile::Append(std::string_view text) {
  if (gzip_ != nullptr) {
    Write(gzip_->Pack(text));
  } else {
    Write(text);
  }
}

void TraceFile::Write(std::string_view bytes) {
  if (status_.ok()) {
    status_ = file_->Append(std::as_bytes(std::span(bytes)));
  }
}

void TraceFile::BeginEvent() {
  Append(empty_ ? "\n" : ",\n");
  empty_ = false;
}

void TraceFile::NameProcess(int64_t process, std::string_view name, std::optional<int64_t> order) {
  BeginEvent();
  Append(fmt::format(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":{}}}}},)"
                     "\n",
                     process, Quote(name)));
  Append(
      fmt::format(R"({{"ph":"M","pid":{},"name":"process_sort_index","args":{{"sort_index":{}}}}})",
                  process, order.value_or(process)));
}

void TraceFile::NameThread(TraceRow row, std::string_view name) {
  BeginEvent();
  Append(fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}}}})",
                     row.process, row.thread, Quote(name)));
}

void TraceFile::AddSpan(TraceRow row, std::string_view name, int64_t start, int64_t duration,
                        TraceArguments arguments) {
  SHOAL_CHECK(duration >= 0);
  BeginEvent();
  Append(fmt::format(R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{})", row.process,
                     row.thread, Microseconds(start), Microseconds(duration), Quote(name)));
  if (arguments.size() > 0) {
    Append(fmt::format(",\"args\":{}", ToJson(arguments)));
  }
  Append("}");
  ++spans_;
}

void TraceFile::SetCounter(int64_t process, std::string_view name, int64_t time, double value) {
  BeginEvent();
  Append(fmt::format(R"({{"ph":"C","pid":{},"ts":{},"name":{},"args":{{"value":{}}}}})", process,
                     Microseconds(time), Quote(name), ToJson(TraceValue(value))));
}

void TraceFile::AddArrow(std::string_view name, TraceRow from, int64_t from_time, TraceRow to,
                         int64_t to_time) {
  SHOAL_CHECK(from_time <= to_time);
  ++arrows_;
  const std::string named = Quote(name);
  BeginEvent();
  Append(fmt::format(R"({{"ph":"s","id":{},"pid":{},"tid":{},"ts":{},"cat":"arrow","name":{}}},)"
                     "\n",
                     arrows_, from.process, from.thread, Microseconds(from_time), named));
  // bp: ends at the span around it, and not at the next one that begins.
  Append(fmt::format(
      R"({{"ph":"f","bp":"e","id":{},"pid":{},"tid":{},"ts":{},"cat":"arrow","name":{}}})", arrows_,
      to.process, to.thread, Microseconds(to_time), named));
}

absl::Status TraceFile::Finish() {
  Append("\n]}\n");
  if (gzip_ != nullptr) {
    Write(gzip_->Finish());
  }
  SHOAL_RETURN_IF_ERROR(status_);
  return file_->Finish();
}

}  // namespace shoal::formats
