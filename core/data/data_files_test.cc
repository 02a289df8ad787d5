#include "core/data/data_files.h"

#include <filesystem>

#include "core/base/file.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using ::testing::ElementsAre;

TEST(DataFilesTest, AreThoseOfAFolderOrPatternInTheOrderOfNames) {
  const TemporaryFolder folder;
  for (const char* name :
       {"b.jsonl", "a.json", "c.jsonl.gz", "d.json.zst", "README.md", ".x.jsonl", "e[1].jsonl"}) {
    ASSERT_TRUE(WriteFileAtomically(folder / name, "x").ok());
  }
  std::filesystem::create_directory(folder / "f.jsonl");
  EXPECT_THAT(ListDataFiles(folder.path()).value(),
              ElementsAre(folder / "a.json", folder / "b.jsonl", folder / "c.jsonl.gz",
                          folder / "d.json.zst", folder / "e[1].jsonl"));
  EXPECT_THAT(ListDataFiles(folder / "[ab].json*").value(),
              ElementsAre(folder / "a.json", folder / "b.jsonl"));
  EXPECT_THAT(ListDataFiles(folder / "README.md").value(), ElementsAre(folder / "README.md"));
  EXPECT_THAT(ListDataFiles(folder / "e[1].jsonl").value(), ElementsAre(folder / "e[1].jsonl"))
      << "a file of that name wins";
  const TemporaryFolder links;  // one of which leads nowhere
  ASSERT_TRUE(WriteFileAtomically(links / "a.jsonl", "x").ok());
  std::filesystem::create_symlink("nowhere", links / "b.jsonl");
  EXPECT_REFUSED(ListDataFiles(links.path()).status(), "cannot open " + links / "b.jsonl");
  EXPECT_REFUSED(ListDataFiles(links / "*.jsonl").status(), "cannot open " + links / "b.jsonl");
  EXPECT_REFUSED(ListDataFiles(folder / "*.csv").status(), "*.csv: no file has such a name");
  EXPECT_REFUSED(ListDataFiles(folder / "f.jsonl").status(), "no file in this folder ends with");
  EXPECT_REFUSED(ListDataFiles(folder / "absent.jsonl").status(), "No such file");
}

TEST(DataFilesTest, DocumentsAreTextsToo) {
  const TemporaryFolder folder;
  for (const char* name : {"b.jsonl", "a.txt", "c.txt.gz", ".d.txt", "README.md"}) {
    ASSERT_TRUE(WriteFileAtomically(folder / name, "x").ok());
  }
  EXPECT_THAT(ListDataFiles(folder.path(), true).value(),
              ElementsAre(folder / "a.txt", folder / "b.jsonl", folder / "c.txt.gz"));
  EXPECT_THAT(ListDataFiles(folder.path()).value(), ElementsAre(folder / "b.jsonl"));
  std::filesystem::create_directory(folder / "empty");
  EXPECT_REFUSED(ListDataFiles(folder / "empty", true).status(),
                 "no file in this folder ends with .jsonl, .json or .txt (or these and .gz");
}

}  // namespace
}  // namespace shoal::worker
