// The shard map, and changes of it, as messages carry them.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/model/map_change.h"
#include "core/model/shard_map.h"
#include "proto/server.pb.h"

namespace shoal::plan {

proto::ShardMap ToMessage(const ShardMap& map);
// Partitions whose servers are missing have none: messages come over the network.
ShardMap FromMessage(const proto::ShardMap& message);

proto::MapChange ToMessage(const MapChange& change);
// InvalidArgument for lists that do not fit together; Apply says whether it fits to a map.
absl::StatusOr<MapChange> FromMessage(const proto::MapChange& message);
// The same, of a message that lies within another.
std::string ToBytes(const MapChange& change);
absl::StatusOr<MapChange> ChangeFromBytes(const std::string& bytes);
// Of a map, without its generation. What cannot be read is a map of nothing.
std::string ToBytes(ShardMap map);
ShardMap MapFromBytes(const std::string& bytes, int64_t generation);

}  // namespace shoal::plan
