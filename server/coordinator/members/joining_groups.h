// Workers that have joined a job and take no part yet: spares, of which groups are made as soon as
// there are enough for all stages of one, and those groups, until all their workers are ready. What
// is left of a group that loses a worker is spare again. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/coordinator/members/membership.h"

namespace shoal::server {

class JoiningGroups {
 public:
  struct Group {
    int64_t formation = 0;        // as JoinJobReply has it
    std::vector<Member> workers;  // by stage
    std::vector<bool> asked;      // for work: what comes before that is done

    bool ready() const;
    // By incarnation; nullptr: not in it.
    const Member* Find(uint64_t incarnation) const;
  };

  void Add(const Member& spare) { spares_.push_back(spare); }
  size_t spares() const { return spares_.size(); }
  // Of the first spares, as many as it has stages.
  const Group& Form(size_t stages, int64_t formation);
  // Who is lost. False: it is none of these.
  bool Remove(uint64_t incarnation);
  // Of a worker's group: it asks for work. Nothing, if it has none.
  void Ask(uint64_t incarnation);

  bool Has(uint64_t incarnation) const;
  // nullptr: it is a spare, or none of these.
  const Group* GroupOf(uint64_t incarnation) const;
  int64_t size() const;   // workers
  int64_t ready() const;  // those of groups that are ready
  std::vector<Group> TakeReady();
  // What they were told holds no more: all are to join anew, under this formation, and take part
  // meanwhile if they are ready.
  void Reform(int64_t formation);

 private:
  std::vector<Member> spares_;
  std::vector<Group> groups_;
};

}  // namespace shoal::server
