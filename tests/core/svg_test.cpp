// SPDX-License-Identifier: Apache-2.0
#include "core/util/svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace xylem {
namespace {

using testing::HasSubstr;

std::string drawn(const std::string& words) {
  SvgCanvas c;
  c.text(0, 0, words);
  const std::string file = c.document(10, 10);
  const size_t begin = file.find('>', file.find("<text")) + 1;
  return file.substr(begin, file.find("</text>") - begin);
}

TEST(Svg, ShapesBecomeElements) {
  SvgCanvas c;
  c.rect(1, 2, 3, 4.25, "white", "black", "stroke-width=\"3\"");
  c.line(0, 0, 5, 5, "red", 2);
  c.path("M0 0L1 1", "#2f6fb3", 1.5);
  c.circle(7, 8, 3, "green");
  c.text(1, 2, "words", "font-size=\"9\"", "grey");
  const std::string file = c.document(120, 80);
  for (const char* element : {"width=\"120.0\" height=\"80.0\" viewBox=\"0 0 120.0 80.0\"",
                              "<rect x=\"1.0\" y=\"2.0\" width=\"3.0\" height=\"4.2\" rx=\"6\" fill=\"white\" "
                              "stroke=\"black\" stroke-width=\"3\"/>",
                              "<line x1=\"0.0\" y1=\"0.0\" x2=\"5.0\" y2=\"5.0\" stroke=\"red\" stroke-width=\"2.0\"/>",
                              "<path d=\"M0 0L1 1\" fill=\"none\" stroke=\"#2f6fb3\" stroke-width=\"1.5\"/>",
                              "<circle cx=\"7.0\" cy=\"8.0\" r=\"3.0\" fill=\"green\"/>",
                              "<text x=\"1.0\" y=\"2.0\" fill=\"grey\" font-size=\"9\">words</text>"})
    EXPECT_THAT(file, HasSubstr(element));
  EXPECT_TRUE(file.ends_with("</svg>\n"));
}

TEST(Svg, TextIsAlwaysWellFormed) {
  EXPECT_EQ(drawn("a < b & \"c\" > d"), "a &lt; b &amp; &quot;c&quot; &gt; d");
  EXPECT_EQ(drawn("tab\tand\x01\x7f"), "tab?and??");
  EXPECT_EQ(drawn("µs, Größe, 学, 🌳"), "µs, Größe, 学, 🌳");
  EXPECT_EQ(drawn("\xff\xc3"), "??") << "no UTF-8";
  EXPECT_EQ(drawn("\xc0\xaf"), "??") << "longer than needed";
  EXPECT_EQ(drawn("\xed\xa0\x80"), "???") << "a surrogate";
  EXPECT_EQ(drawn("\xf5\x80\x80\x80"), "????") << "beyond the last character";
  EXPECT_EQ(drawn("\xef\xbf\xbf"), "???") << "no character of XML";
}

}  // namespace
}  // namespace xylem
