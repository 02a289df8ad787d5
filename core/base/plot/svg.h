// An SVG drawing, element by element, on its own light background, so that it looks the same on a
// dark page. Coordinates are pixels from the upper left corner.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal::plot {

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
  void Line(Point from, Point to, std::string_view colour, double width, bool dashed = false);
  void Polyline(const std::vector<Point>& points, std::string_view colour, double width,
                bool dashed);
  void Disc(Point centre, double radius, std::string_view colour);
  void Ring(Point centre, double radius, std::string_view colour);
  void Text(Point place, std::string_view text, const TextStyle& style = {});

  // Returns the whole document.
  std::string Finish() const { return text_ + "</svg>\n"; }

 private:
  std::string text_;
};

}  // namespace shoal::plot
