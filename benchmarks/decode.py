"""How near to memory bandwidth is a single query?"""

from rootdk.bench import script

if __name__ == "__main__":
    script.main("decode")
