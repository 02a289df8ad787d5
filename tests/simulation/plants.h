// Bugs planted in what is simulated, each of which seeds must find (core/base/testing/planted.h).
#pragma once

#include <array>

namespace shoal::simulation {

struct Plant {
  const char* name;
  const char* what;
};

inline constexpr std::array kPlants = {
    Plant{"incarnation-again", "a member gets the incarnation of one that is gone"},
    Plant{"fenced-report", "whoever has lost its lease is listened to again"},
    Plant{"member-dropped", "a repeated registration on a full disk drops the member"},
    Plant{"commit-twice", "a repeated Commit is applied again"},
    Plant{"commit-unrecorded", "servers commit a step that is not recorded"},
    Plant{"record-ignored", "servers commit a step whose record could not be written"},
    Plant{"pushes-unchecked", "servers' counts of pushes are not compared with the workers'"},
    Plant{"report-unchecked", "a report is taken whatever it was given"},
    Plant{"key-twice", "a push that is repeated counts again"},
    Plant{"fence-forgotten", "a server fences nobody"},
    Plant{"attempt-unchecked", "a push of an earlier attempt is taken"},
    Plant{"weights-kept", "a client keeps the weights of the step before"},
    Plant{"gradient-kept",
          "a server forgets an attempt's keys, and not the sum of their gradients"},
    Plant{"moments-forgotten", "a server that is restored begins without moments"},
    Plant{"loss-twice", "the loss of a pack counts again when it is told again"},
    Plant{"pack-forgotten", "of the packs of a lost worker one is given to nobody"},
    Plant{"term-unchecked", "commands of an earlier life of the coordinator are taken"},
    Plant{"stop-forgotten", "a stop during a commit is forgotten"},
    Plant{"event-lost", "the number of an event is used up by a checkpoint that failed"},
    Plant{"event-by-number", "what a follower has seen goes by number, whichever life gave it"},
    Plant{"successor-unheeded", "whom servers refuse for its term fails its jobs, and says so"},
    Plant{"move-unrecorded", "the next step begins by a shard map that is not recorded"},
    Plant{"state-unawaited", "a shard map is recorded before state has come to who is to hold it"},
    Plant{"moment-unmoved", "of state that moves one array is taken for another"},
    Plant{"gradient-unreplicated", "a backup commits without the gradient of the step"},
    Plant{"gradient-again", "a backup applies the gradient of the step before again"},
    Plant{"backup-left-behind", "a backup keeps the state before the step that is committed"},
    Plant{"early-seal-misses-contribution",
          "a gradient goes to backups before the last contribution to it"},
    Plant{"replicas-unawaited", "a step is recorded before backups have its gradient"},
    Plant{"read-old-version-at-backup", "a client reads the version before at a backup"},
    Plant{"bytes-of-one", "of the bytes of a wave those of one server are told"},
    Plant{"extent-kept", "a server keeps the memory of partitions that have moved away"},
    Plant{"place-forgotten", "of the partitions that move workers are told all but one"},
    Plant{"servers-forgotten", "workers are not told which servers come and go with a shard map"},
    Plant{"reader-of-another", "who reads partitions that move is told so as another worker is"},
    Plant{"waves-forgotten", "of the waves of a wish the first is the last"},
    Plant{"balanced-by-two", "servers that differ by two partitions are taken for balanced"},
    Plant{"restore-forgotten", "after a loss a job begins at its model, whatever was saved"},
};

}  // namespace shoal::simulation
