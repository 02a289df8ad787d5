// A test of clusters in which all trains, and of clusters in which blocks are frozen.
#pragma once

#include <string>

#include "gtest/gtest.h"
#include "server/service/testing/cluster.h"

namespace shoal::server {

class FreezesTest : public ::testing::TestWithParam<bool> {
 public:
  static std::string NameOf(const ::testing::TestParamInfo<bool>& info) {
    return info.param ? "BlocksFrozen" : "AllTrains";
  }

 protected:
  FreezesTest() {
    if (GetParam()) {
      TestingCluster::groups = {{.match = "model.layers.*", .freeze = true}};
    }
  }
  ~FreezesTest() override { TestingCluster::groups.clear(); }
};

}  // namespace shoal::server
