// The shard map as messages carry it.
#pragma once

#include "core/model/shard_map.h"
#include "proto/server.pb.h"

namespace shoal::plan {

proto::ShardMap ToMessage(const ShardMap& map);
ShardMap FromMessage(const proto::ShardMap& message);

}  // namespace shoal::plan
