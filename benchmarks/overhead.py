"""What does a call cost before it computes?"""

from rootdk.bench import script

if __name__ == "__main__":
    script.main("overhead")
