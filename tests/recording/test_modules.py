"""Which modules are chosen in models of many shapes: blocks, their parts and non-linearities, without being asked."""

import pytest
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from gradwatch.recording.modules import MOST, chosen


class Named(nn.Module):
    """A module of these parts; each class of its own is another kind of module."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


class Attention(Named):
    pass


class Mlp(Named):
    pass


class Block(Named):
    pass


class Stage(Named):
    pass


class DropPath(nn.Module):
    pass


def attention():
    return Attention(qkv=nn.Linear(2, 6), out=nn.Linear(2, 2))


def mlp():
    return Mlp(up=nn.Linear(2, 4), act=nn.GELU(), down=nn.Linear(4, 2))


def block():
    return Block(norm=nn.LayerNorm(2), attn=attention(), drop_path=DropPath(), mlp=mlp())


PARTS = ("norm", "attn", "mlp", "mlp.act", "")


def of_block(at):
    return {f"{at}.{part}" if part else at for part in PARTS}


@pytest.mark.parametrize("called", [False, True])  # Hugging Face's Swin, timm's
def test_of_stages_that_list_their_blocks_both_are_chosen(called):
    def stage():
        blocks = [block(), block()]
        return Stage(blocks=nn.Sequential(*blocks) if called else nn.ModuleList(blocks), down=nn.Linear(2, 2))

    model = Named(stages=nn.ModuleList([stage(), stage()]), head=nn.Linear(2, 2))
    wanted = {"head", *(name for s in (0, 1) for name in (f"stages.{s}", f"stages.{s}.down"))}
    wanted |= {name for s in (0, 1) for b in (0, 1) for name in of_block(f"stages.{s}.blocks.{b}")}
    assert set(chosen(model, True)) == wanted | ({"stages.0.blocks", "stages.1.blocks"} if called else set())


def test_unlike_parts_in_the_list_of_a_block_are_told_apart():
    layers = [[Block(own=attention()), Block(cross=attention()), Stage(mlp=mlp())] for _ in range(2)]  # as in T5
    model = Named(block=nn.ModuleList(Block(layer=nn.ModuleList(three)) for three in layers))
    names = set(chosen(model, True))
    assert {"block.0.layer.0.own", "block.0.layer.1.cross", "block.0.layer.2.mlp"} <= names


def test_pairs_in_lists_of_lists_are_blocks():
    model = Named(layers=nn.ModuleList(nn.ModuleList([attention(), mlp()]) for _ in range(3)), norm=nn.LayerNorm(2))
    names = set(chosen(model, True))
    assert {f"layers.{i}.{j}" for i in range(3) for j in (0, 1)} | {"norm", "layers.0.1.act"} <= names
    assert not {f"layers.{i}" for i in range(3)} & names  # these are never called


def test_a_single_block_and_blocks_of_one_class_each_are_found():
    assert of_block("layers.0") <= set(chosen(Named(layers=nn.ModuleList([block()])), True))
    mixed = Named(layers=nn.ModuleList([block(), Stage(norm=nn.LayerNorm(2), attn=attention(), mlp=mlp())]))
    assert of_block("layers.0") | of_block("layers.1") <= set(chosen(mixed, True))


def test_experts_in_a_block_do_not_take_the_place_of_blocks():
    def moe():
        return Block(attn=attention(), gate=nn.Linear(2, 64), experts=nn.ModuleList(mlp() for _ in range(64)))

    names = set(chosen(Named(layers=nn.ModuleList(moe() for _ in range(4))), True))
    assert len(names) <= MOST
    assert {f"layers.{i}{part}" for i in range(4) for part in ("", ".attn")} <= names


def test_what_makes_a_weight_is_no_module_of_the_forward_pass():
    model = nn.Sequential(weight_norm(nn.Linear(2, 2, bias=False)), nn.Tanh(), nn.Linear(2, 1))
    assert set(chosen(model, True)) == {"0", "1", "2"}
