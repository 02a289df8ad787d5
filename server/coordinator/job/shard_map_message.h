// The shard map as messages carry it.
#pragma once

#include "core/model/shard_map.h"
#include "proto/server.pb.h"

namespace shoal::server {

proto::ShardMap ToMessage(const plan::ShardMap& map);
plan::ShardMap FromMessage(const proto::ShardMap& message);

}  // namespace shoal::server
