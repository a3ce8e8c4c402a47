// SPDX-License-Identifier: Apache-2.0
// Members that a module does not list.
#include "models/nn/parameter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/nn/layers.h"
#include "models/optim/optimizers.h"

namespace xylem {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Forgetful : Module {
  Linear listed{3, 3}, forgotten{3, 2};
  XY_MEMBERS(listed)
  Tensor operator()(const Tensor& x) const { return forgotten(listed(x)); }
};

// What a first step over the losses of `model` says.
template <class F>
std::string said_by(F&& step) {
  testing::internal::CaptureStderr();
  step();
  return testing::internal::GetCapturedStderr();
}

TEST(Members, OneThatIsNotListedIsNoticedInTheFirstStep) {
  Forgetful net;
  SGD opt(net, 0.1);
  auto step = [&] {
    opt.zero_grad();
    sum(net(ones({2, 3}))).backward();
    opt.step();
  };
  std::string said = said_by(step);
  EXPECT_THAT(said, AllOf(HasSubstr("[2, 3], made by xylem::Linear::Linear\n"), HasSubstr("[2], made by"),
                          HasSubstr("XY_MEMBERS"), Not(HasSubstr("[3, 3]"))));
  EXPECT_EQ(said_by(step), "");  // once
}

TEST(Members, OfOtherOptimizersFrozenOrWithoutGradientsAreNoCause) {
  Linear d{3, 1}, g{3, 3}, teacher{3, 3}, critic{3, 1}, unused{3, 3};
  critic.requires_grad(false);
  SGD of_g(g, 0.1), of_d(d, 0.1);
  EXPECT_EQ(said_by([&] {
              Tensor x = g(ones({2, 3})), target = no_grad([&] { return teacher(ones({2, 3})); });
              (sum(d(x)) + sum(critic(x)) + mse_loss(x, target)).backward();
              of_g.step();
            }),
            "");
}

TEST(Members, ParametersOfAModuleOfItsOwnAreNamedByTheirShape) {
  struct Own : Module {
    Tensor scale = parameter(ones({7})), shift = parameter(zeros({6}));
    XY_MEMBERS(scale)
  } own;
  SGD opt(own, 0.1);
  std::string said = said_by([&] {
    (sum(own.scale) + sum(own.shift)).backward();
    opt.step();
  });
  EXPECT_THAT(said, AllOf(HasSubstr("[6], made by"), HasSubstr("Own"), Not(HasSubstr("[7]"))));
}

}  // namespace
}  // namespace xylem
