// The files of a job's model, as messages carry them.
#pragma once

#include <span>
#include <vector>

#include "core/model/huggingface/model_files.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "proto/coordinator.pb.h"

namespace shoal::plan {

void AddTo(std::span<const formats::ModelFile> files,
           google::protobuf::RepeatedPtrField<proto::ModelFile>& messages);
std::vector<formats::ModelFile> FromMessage(
    const google::protobuf::RepeatedPtrField<proto::ModelFile>& messages);

}  // namespace shoal::plan
