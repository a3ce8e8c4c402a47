// SPDX-License-Identifier: Apache-2.0
#include "models/loop/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace xylem {
namespace {

constexpr double kWidth = 800, kHeight = 480, kLeft = 70, kRight = 20, kTop = 40, kBottom = 55;

std::string number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", std::abs(v) < 1e-12 ? 0.0 : v);
  return text;
}
std::string pixel(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", v);
  return text;
}
std::string escape(const std::string& text) {
  std::string out;
  for (char c : text) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

struct Axis {
  double low, high, step, from, to;  // values and the pixels they map to
  double operator()(double v) const { return from + (v - low) / (high - low) * (to - from); }
};

// Widens a range to multiples of 1, 2 or 5 times a power of ten, with about `ticks` of them.
Axis make_axis(double low, double high, int ticks, double from, double to) {
  if (!(low <= high)) low = 0, high = 1;
  if (low == high) low -= 0.5, high += 0.5;
  double rough = (high - low) / ticks, power = std::pow(10, std::floor(std::log10(rough)));
  double step = power * 10;
  for (double m : {1.0, 2.0, 5.0})
    if (m * power >= rough) {
      step = m * power;
      break;
    }
  return {std::floor(low / step) * step, std::ceil(high / step) * step, step, from, to};
}

std::string text(double x, double y, const char* anchor, const std::string& content, const char* more = "") {
  return "<text x=\"" + pixel(x) + "\" y=\"" + pixel(y) + "\" text-anchor=\"" + anchor + "\"" + more + ">" +
         escape(content) + "</text>\n";
}
std::string line(double x1, double y1, double x2, double y2, const std::string& colour, int width) {
  return "<line x1=\"" + pixel(x1) + "\" y1=\"" + pixel(y1) + "\" x2=\"" + pixel(x2) + "\" y2=\"" + pixel(y2) +
         "\" stroke=\"" + colour + "\" stroke-width=\"" + std::to_string(width) + "\"/>\n";
}

std::string curve(const Series& s, const Axis& x, const Axis& y) {
  std::string path, marks;
  bool pen_down = false;
  for (auto [px, py] : s.points) {
    if (!std::isfinite(py)) {
      pen_down = false;
      continue;
    }
    path.append(pen_down ? "L" : "M").append(pixel(x(px))).append(" ").append(pixel(y(py)));
    pen_down = true;
    if (s.markers)
      marks += "<circle cx=\"" + pixel(x(px)) + "\" cy=\"" + pixel(y(py)) + "\" r=\"3\" fill=\"" + s.colour + "\"/>\n";
  }
  return "<path d=\"" + path + "\" fill=\"none\" stroke=\"" + s.colour + "\" stroke-width=\"1.5\"/>\n" + marks;
}

}  // namespace

std::string plot_svg(const std::string& title, const std::string& x_label, const std::string& y_label,
                     const std::vector<Series>& series) {
  double x_low = INFINITY, x_high = -INFINITY, y_low = INFINITY, y_high = -INFINITY;
  for (const Series& s : series)
    for (auto [px, py] : s.points)
      if (std::isfinite(py)) {
        x_low = std::min(x_low, px), x_high = std::max(x_high, px);
        y_low = std::min(y_low, py), y_high = std::max(y_high, py);
      }
  Axis x = make_axis(x_low, x_high, 8, kLeft, kWidth - kRight),
       y = make_axis(y_low, y_high, 6, kHeight - kBottom, kTop);

  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + number(kWidth) + "\" height=\"" +
                    number(kHeight) + "\" font-family=\"sans-serif\" font-size=\"13\">\n" +
                    "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  svg += text(kWidth / 2, 24, "middle", title, " font-size=\"16\"");
  for (double v = x.low; v <= x.high + x.step / 2; v += x.step) {
    svg += line(x(v), y.to, x(v), y.from, "#e0e0e0", 1);
    svg += text(x(v), y.from + 18, "middle", number(v));
  }
  for (double v = y.low; v <= y.high + y.step / 2; v += y.step) {
    svg += line(x.from, y(v), x.to, y(v), "#e0e0e0", 1);
    svg += text(x.from - 8, y(v) + 4, "end", number(v));
  }
  svg += line(x.from, y.from, x.to, y.from, "black", 1) + line(x.from, y.from, x.from, y.to, "black", 1);
  svg += text((x.from + x.to) / 2, kHeight - 14, "middle", x_label);
  double middle = (y.from + y.to) / 2;
  svg += text(18, middle, "middle", y_label, (" transform=\"rotate(-90 18 " + pixel(middle) + ")\"").c_str());
  double row = kTop + 18;
  for (const Series& s : series) {
    if (s.points.empty()) continue;
    svg += curve(s, x, y);
    svg += line(x.to - 150, row - 4, x.to - 125, row - 4, s.colour, 3) + text(x.to - 118, row, "start", s.name);
    row += 20;
  }
  return svg + "</svg>\n";
}

}  // namespace xylem
