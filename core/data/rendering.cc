#include "core/data/rendering.h"

#include "core/base/file.h"
#include "core/base/json/json.h"
#include "core/base/status.h"

namespace shoal::worker {
namespace {

std::string FileIn(const std::string& folder) { return folder + "/rendering.json"; }

}  // namespace

absl::StatusOr<std::optional<Rendering>> ReadRendering(const std::string& folder) {
  const absl::StatusOr<Json> json = ReadJson(FileIn(folder));
  if (absl::IsNotFound(json.status())) {
    return std::nullopt;
  }
  SHOAL_RETURN_IF_ERROR(json.status());
  SHOAL_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::From(*json, FileIn(folder)));
  Rendering rendering;
  SHOAL_ASSIGN_OR_RETURN(rendering.chat_template, object.String("template"));
  SHOAL_ASSIGN_OR_RETURN(rendering.day, object.String("day"));
  return rendering;
}

absl::Status WriteRendering(const std::string& folder, const Rendering& rendering) {
  SHOAL_RETURN_IF_ERROR(CreateDirectories(folder));
  const Json json = {{"template", rendering.chat_template}, {"day", rendering.day}};
  return WriteFileAtomically(FileIn(folder), json.dump() + "\n");
}

}  // namespace shoal::worker
