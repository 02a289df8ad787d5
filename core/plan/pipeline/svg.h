// An SVG drawing, element by element, on its own light background, so that it looks the same on a
// dark page. Coordinates are pixels from the upper left corner.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal::plan {

struct Point {
  double x = 0;
  double y = 0;
};

inline constexpr std::string_view kInk = "#1f2328";
inline constexpr std::string_view kFaintInk = "#57606a";
inline constexpr std::string_view kGridLine = "#e3e6ea";

struct TextStyle {
  double size = 12;
  std::string_view anchor = "start";  // or middle, end
  std::string_view colour = kInk;
  bool bold = false;
  double degrees = 0;  // rotation about its place
};

class Svg {
 public:
  // `title` is what a screen reader says.
  Svg(double width, double height, std::string_view title);

  // `hint` appears when the mouse points at it; may be empty.
  void Rectangle(Point corner, double width, double height, std::string_view fill,
                 std::string_view hint = {});
  void Line(Point from, Point to, std::string_view colour, double width);
  void Text(Point place, std::string_view text, const TextStyle& style = {});

  // Returns the whole document.
  std::string Finish() const { return text_ + "</svg>\n"; }

 private:
  std::string text_;
};

// Steps of 1, 2 or 5 times a power of ten that cover the values, five or so of them.
std::vector<double> TicksFor(double low, double high);

}  // namespace shoal::plan
