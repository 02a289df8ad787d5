// What JobRun keeps of things under way.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/plan/placement/map_history.h"
#include "core/plan/placement/move_pace.h"
#include "core/plan/placement/placement.h"
#include "server/coordinator/job/partition_move.h"
#include "server/coordinator/job/server_client.h"
#include "server/coordinator/job/takeover.h"
#include "server/coordinator/members/membership.h"

namespace shoal::server {

// Where a job is.
enum class JobPhase {
  kWaiting,      // for members
  kTakingOver,   // servers of an earlier life's run are asked where they are
  kConfiguring,  // servers load
  kMoving,       // partitions change servers
  kShort,        // of workers
  kPlanning,     // the plan of the step to come is not ready yet
  kBeginning,
  kRunning,
  kPreparing,
  kCommitting,
  kPinning,               // servers pin the version to be written; training goes on after that
  kWaitingForCheckpoint,  // the next one is due before the last is complete
  kFinishing,             // no more steps; the last checkpoint
  kOver,
};

// A run of an earlier life, until servers have said where it is.
struct Takeover {
  EarlierRun run;
  std::vector<std::optional<ServerAnswer>> answers;  // by server
  std::map<size_t, absl::Time> ask_again;            // servers that could not be reached; when
  std::optional<int64_t> recorded;  // the last event in the run's record, once that is read
  bool decided = false;
};

// Why a job ends.
struct Failure {
  std::string message;
  bool non_finite = false;
  bool by_loss = false;
  bool asked = false;  // the one that is lost
};

// Whether a later life has taken over.
struct Question {
  size_t unanswered = 0;
  absl::Time until;
  std::function<void()> then;
};

// Of a move: what it needs in steps between.
struct Waves {
  int64_t number = 0;                 // of the newest: what is answered to others is late
  std::optional<int64_t> held_up_by;  // the first checkpoint since it could begin
  bool follow = false;                // more are to
  bool meanwhile = false;  // the newest makes backups while servers load that are to come
  int64_t ended = 0;       // of the move
  absl::Time began;        // the newest
  absl::Time reserved_at;  // of that, all it needs: later ones of the wish need not
  absl::Time next;         // not before that, by the rate
  int64_t rate = 0;        // bytes a second, at most; 0: no bound
  plan::MovePace pace;
  ReservedPlaces reserved;
  // What is left to move after the newest, by a map of that generation and to those places.
  std::vector<plan::Relocation> rest;
  int64_t rest_generation = 0;
  std::vector<int> rest_places;
  std::optional<PlannedWave> ahead;    // the next, as it looked when that was planned
  std::optional<WaveKey> ahead_asked;  // of the one that is planned so, or is being planned

  // What is left to move; nullopt: partitions are elsewhere than when that was planned, or others
  // are to hold them.
  std::optional<std::vector<plan::Relocation>> Rest(const WaveKey& key) const {
    return rest_generation == key.generation && rest_places == key.places ? std::optional(rest)
                                                                          : std::nullopt;
  }
};

// What workers may know, in place of the newest shard map.
struct KnownMaps {
  plan::MapHistory history;
  // The last that was told, without readers, and as it was told: many ask for the same.
  plan::MapChange change;
  std::string told;
  std::vector<bool> peers;  // by worker: it knows those that there are now (JoinJobReply.peers)
  MapForms forms;           // of the newest map, once they are needed
};

// Servers that load the job, before they get some of it, or may have, in an earlier life.
struct Joiners {
  std::vector<Member> servers;
  // Incarnations: of those that have not answered, that have loaded it, and that cannot, with why.
  std::set<uint64_t> asked;
  std::set<uint64_t> loaded;
  std::map<uint64_t, std::string> refused;
  int64_t number = 0;  // of those asked together
  std::shared_ptr<ServerClient> control;
};

// Of servers that are lost, where others have what they had.
struct Replicas {
  std::set<uint64_t> lost;  // incarnations, until a map without them counts
  // Calls of all servers that are under way hear of one that is lost, by its place.
  std::map<int64_t, std::function<void(int)>> rounds;
  int64_t next_round = 0;
  absl::Time again = absl::InfiniteFuture();  // when it is tried again to recover
  int64_t tries = 0;                          // that failed, in a row
};

// Where they could not be made.
inline constexpr absl::Duration kBetweenTriesOfBackups = absl::Seconds(10);

// Of a server that is to go.
struct Departure {
  std::string why;
  bool drained = false;  // by wish: where it cannot go, it stays
};

}  // namespace shoal::server
