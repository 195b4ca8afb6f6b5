"""Children by fork and by spawn, as a data loader makes them: they work, and one that uses the communicator is told so."""
import array, multiprocessing, os, sys
import weft

c = None

def load(i):
    return sum(range(i))

def use(_):
    try:
        c.all_reduce(array.array("d", [1]))
        return "no error"
    except weft.Forked as e:
        return str(e)

def fresh(_):
    d = weft.join(rank=0, size=1)
    x = array.array("d", [3])
    d.all_reduce(x)
    d.close()
    return x[0]

if __name__ == "__main__":
    c = weft.join()
    for round in range(3):
        c.barrier()
        with multiprocessing.get_context("fork").Pool(4) as pool:
            assert pool.map(load, range(50)) == [load(i) for i in range(50)]
            for text in pool.map(use, range(4)):
                assert "fork" in text, text
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(load, range(50)) == [load(i) for i in range(50)]
        assert pool.map(fresh, range(2)) == [3, 3]
    c.barrier()
    print("well")
    # The interpreter ends without close: atexit does it.
