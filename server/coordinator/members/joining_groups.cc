#include "server/coordinator/members/joining_groups.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/check.h"

namespace shoal::server {
namespace {

// Whether it was there.
bool EraseFrom(std::vector<Member>& members, uint64_t incarnation) {
  return std::erase_if(members, [incarnation](const Member& member) {
           return member.incarnation == incarnation;
         }) > 0;
}

}  // namespace

bool JoiningGroups::Group::ready() const { return std::ranges::find(asked, false) == asked.end(); }

const Member* JoiningGroups::Group::Find(uint64_t incarnation) const {
  const auto found = std::ranges::find(workers, incarnation, &Member::incarnation);
  return found == workers.end() ? nullptr : &*found;
}

const JoiningGroups::Group& JoiningGroups::Form(size_t stages, int64_t formation) {
  SHOAL_CHECK(spares_.size() >= stages);
  const auto end = spares_.begin() + static_cast<std::ptrdiff_t>(stages);
  Group& group = groups_.emplace_back(Group{.formation = formation,
                                            .workers = {spares_.begin(), end},
                                            .asked = std::vector<bool>(stages, false)});
  spares_.erase(spares_.begin(), end);
  return group;
}

bool JoiningGroups::Remove(uint64_t incarnation) {
  if (EraseFrom(spares_, incarnation)) {
    return true;
  }
  for (auto group = groups_.begin(); group != groups_.end(); ++group) {
    if (EraseFrom(group->workers, incarnation)) {
      spares_.insert(spares_.begin(), group->workers.begin(), group->workers.end());
      groups_.erase(group);
      return true;
    }
  }
  return false;
}

void JoiningGroups::Ask(uint64_t incarnation) {
  for (Group& group : groups_) {
    if (const Member* const worker = group.Find(incarnation); worker != nullptr) {
      group.asked[static_cast<size_t>(worker - group.workers.data())] = true;
    }
  }
}

bool JoiningGroups::Has(uint64_t incarnation) const {
  return GroupOf(incarnation) != nullptr ||
         std::ranges::find(spares_, incarnation, &Member::incarnation) != spares_.end();
}

const JoiningGroups::Group* JoiningGroups::GroupOf(uint64_t incarnation) const {
  const auto found = std::ranges::find_if(
      groups_, [incarnation](const Group& group) { return group.Find(incarnation) != nullptr; });
  return found == groups_.end() ? nullptr : &*found;
}

int64_t JoiningGroups::size() const {
  int64_t workers = std::ssize(spares_);
  for (const Group& group : groups_) {
    workers += std::ssize(group.workers);
  }
  return workers;
}

int64_t JoiningGroups::ready() const {
  int64_t workers = 0;
  for (const Group& group : groups_) {
    workers += group.ready() ? std::ssize(group.workers) : 0;
  }
  return workers;
}

void JoiningGroups::Reform(int64_t formation) {
  for (Group& group : groups_) {
    group.formation = formation;
  }
}

std::vector<JoiningGroups::Group> JoiningGroups::TakeReady() {
  std::vector<Group> ready;
  std::ranges::copy_if(groups_, std::back_inserter(ready), &Group::ready);
  std::erase_if(groups_, [](const Group& group) { return group.ready(); });
  return ready;
}

}  // namespace shoal::server
