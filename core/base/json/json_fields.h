// Reads typed fields of a JSON object; errors name the file, the key and what was found there.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace shoal::formats {

// Reads a whole file as a JSON object.
absl::StatusOr<nlohmann::json> ReadJsonObject(const std::string& path);
absl::StatusOr<nlohmann::json> ParseJsonObject(const std::string& text,
                                               const std::string& file_name);

// Each reader leaves `out` unchanged if the key is absent or null. `object` must outlive this.
class JsonFields {
 public:
  JsonFields(const nlohmann::json& object, std::string file_name)
      : object_(object), file_name_(std::move(file_name)) {}

  // Returns null if the key is absent or null.
  const nlohmann::json* Find(const std::string& key) const;
  absl::Status Integer(const std::string& key, int64_t& out) const;
  absl::Status Number(const std::string& key, double& out) const;
  absl::Status Boolean(const std::string& key, bool& out) const;
  absl::Status String(const std::string& key, std::string& out) const;
  absl::Status Require(const std::string& key) const;

 private:
  absl::Status WrongType(const std::string& key, const char* expected) const;

  const nlohmann::json& object_;
  const std::string file_name_;
};

}  // namespace shoal::formats
