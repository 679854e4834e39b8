"""Does it hold for every element type?"""

from rootdk.bench import script

if __name__ == "__main__":
    script.main("dtypes")
