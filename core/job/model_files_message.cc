#include "core/job/model_files_message.h"

namespace shoal::plan {

void AddTo(std::span<const formats::ModelFile> files,
           google::protobuf::RepeatedPtrField<proto::ModelFile>& messages) {
  for (const formats::ModelFile& file : files) {
    proto::ModelFile& message = *messages.Add();
    message.set_name(file.name);
    message.set_bytes(file.bytes);
    message.set_fingerprint(file.fingerprint);
  }
}

std::vector<formats::ModelFile> FromMessage(
    const google::protobuf::RepeatedPtrField<proto::ModelFile>& messages) {
  std::vector<formats::ModelFile> files;
  for (const proto::ModelFile& message : messages) {
    files.push_back(
        {.name = message.name(), .bytes = message.bytes(), .fingerprint = message.fingerprint()});
  }
  return files;
}

}  // namespace shoal::plan
