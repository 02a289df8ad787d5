#include "core/base/json/json.h"

#include "core/base/testing/status.h"
#include "gtest/gtest.h"

namespace shoal {
namespace {

std::string Nested(int depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(ParseJson, BoundsTheDepth) {
  EXPECT_THAT(ParseJson(Nested(kMaxJsonDepth), "f"), IsOk());
  EXPECT_REFUSED(ParseJson(Nested(kMaxJsonDepth + 1), "f").status(), "f: nested more than 64 deep");
  EXPECT_REFUSED(ParseJson(fmt::format(R"({{"a": {{}}, "b": {}}})", Nested(200000)), "f").status(),
                 "f: nested more than 64 deep in 'b'");
  EXPECT_THAT(ParseJson(fmt::format("[{0},{0}]", Nested(60)), "f"), IsOk());
}

TEST(ParseJson, SaysWhatIsWrongInOneLine) {
  EXPECT_REFUSED(ParseJson("", "f").status(), "f: not valid JSON at byte 1");
  EXPECT_REFUSED(ParseJson("{} {}", "f").status(), "f: not valid JSON at byte 4");
  EXPECT_REFUSED(ParseJson("1e999", "f").status(), "f: not valid JSON");
  EXPECT_REFUSED(ParseJson("\"\xFF\"", "f").status(), "f: not valid JSON");
  const absl::Status status = ParseJson(fmt::format("\"{:a>100000}\n\"", ""), "f").status();
  EXPECT_LT(status.message().size(), 300U);
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
}

TEST(ParseJson, RefusesRepeatedKeysIfAsked) {
  const std::string text = R"({"a": 1, "b": {"a": 1, "a": 2}, "a": 3})";
  EXPECT_EQ((*ParseJson(text, "f"))["a"], 3);
  EXPECT_REFUSED(ParseJson(text, "f", RepeatedKeys::kRefuse).status(), "f: 'a' appears twice");
}

TEST(JsonObject, NamesTheFieldAndWhatItIs) {
  const Json json = {{"text", "x"}, {"half", 0.5}, {"none", nullptr}, {"list", {1}}};
  const JsonObject object = *JsonObject::From(json, "f");
  EXPECT_EQ(*object.String("text"), "x");
  EXPECT_EQ(*object.StringOr("none", "y"), "y");
  EXPECT_EQ(*object.Number("half"), 0.5);
  EXPECT_EQ(*object.IntegerOr("none", 7), 7);
  EXPECT_REFUSED(object.String("none").status(), "f: none is missing");
  EXPECT_REFUSED(object.Integer("half").status(), "f: half is 0.5, expected an integer");
  EXPECT_REFUSED(object.BoolOr("list", true).status(), "f: list is array, expected true or false");
  EXPECT_REFUSED(object.Object("text").status(), "f: text is \"x\", expected an object");
  EXPECT_REFUSED(object.AllowOnly({"text"}), "is not supported");
}

TEST(JsonObject, NamesTheLine) {
  JsonLines lines;
  const Json json =
      *ParseJson("{\n\"a\": {\"b\": [{\"in\": 1},\n 2],\n \"c\"\n: 3}, \"d\": {}\n}", "f", lines);
  EXPECT_EQ(lines, (JsonLines{{"a", 2}, {"a.b", 2}, {"a.c", 4}, {"d", 5}}));
  const JsonObject object = *JsonObject::From(json, "f", &lines);
  const JsonObject inner = *object.Object("a");
  EXPECT_REFUSED(inner.String("c").status(), "f:4: a.c is 3, expected a string");
  EXPECT_REFUSED(inner.String("e").status(), "f: a.e is missing");
  EXPECT_REFUSED(object.Array("d").status(), "f:5: d is object, expected an array");
  EXPECT_REFUSED(ParseJson("{\n1}", "f", lines).status(), "f: not valid JSON");
  EXPECT_TRUE(ParseJson(R"({"one": "line"})", "f", lines).ok());
  EXPECT_TRUE(lines.empty()) << "it tells nothing";
}

TEST(IntegerIn, KeepsToTheRange) {
  EXPECT_EQ(*IntegerIn(5, 0, 5, "n"), 5);
  EXPECT_REFUSED(IntegerIn(6, 0, 5, "n").status(), "n is 6, expected an integer from 0 to 5");
  EXPECT_REFUSED(IntegerIn(UINT64_MAX, INT64_MIN, INT64_MAX, "n").status(), "expected an integer");
}

}  // namespace
}  // namespace shoal
